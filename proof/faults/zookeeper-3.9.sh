#!/bin/bash
# Fetches the jars of ZooKeeper 3.9.3 and of what it needs, as the Python package pyspark brings them: zookeeper-3.9.sh FOLDER
#
# It reads 430 MB, and leaves 7 MB in FOLDER.
set -euo pipefail
folder=$1 download=$(mktemp -d)
trap 'rm -rf "$download"' EXIT
jars='(zookeeper|zookeeper-jute|slf4j-api|metrics-core|snappy-java|audience-annotations|commons-io|netty-(buffer|codec|common|handler|resolver|transport|transport-classes-epoll|transport-native-unix-common))-[0-9][^/]*\.jar'
python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-build-isolation --no-binary :all: \
    --dest "$download" pyspark==4.0.0 || [ -e "$download/pyspark-4.0.0.tar.gz" ]
tar --extract --gzip --directory "$download" --file "$download/pyspark-4.0.0.tar.gz"
mkdir -p "$folder"
find "$download" -regextype egrep -regex ".*/deps/jars/$jars" -exec mv {} "$folder" \;
ls "$folder"
