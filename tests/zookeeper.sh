#!/bin/sh
# Runs a ZooKeeper for tests: zookeeper.sh PORT FOLDER [SWEEP_MS [NUMBER MEMBER…]]
#
# It listens on 127.0.0.1:PORT, keeps its data and its log in FOLDER, and looks for containers and
# TTL nodes to remove once in SWEEP_MS. It ends when its stdin ends: with its parent, however that
# dies. Then the folder goes too; it stays when the server ended by itself, with the log in it.
#
# With a NUMBER it is that member of an ensemble, whose members are HOST:PORT:ELECTION_PORT, the first
# number 1. FOLDER/pid is the process to stop and continue.
port=$1 folder=$2 sweep=${3:-60000} number=$4
mkdir -p "$folder/data"
cat >"$folder/zoo.cfg" <<END
dataDir=$folder/data
clientPort=$port
clientPortAddress=127.0.0.1
tickTime=200
maxSessionTimeout=60000
maxClientCnxns=0
4lw.commands.whitelist=*
END
main=ZooKeeperServerMain
if [ -n "$number" ]; then
    main=quorum.QuorumPeerMain
    shift 4
    echo "$number" >"$folder/data/myid"
    printf 'initLimit=100\nsyncLimit=50\n' >>"$folder/zoo.cfg"
    member=0
    for address; do
        member=$((member + 1))
        echo "server.$member=$address" >>"$folder/zoo.cfg"
    done
fi
exec 3<&0
java -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData \
    -Dzookeeper.extendedTypesEnabled=true -Dzookeeper.admin.enableServer=false \
    -Dzookeeper.forceSync=no -Dzookeeper.preAllocSize=64 \
    -Dznode.container.checkIntervalMs="$sweep" \
    -cp /usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar \
    org.apache.zookeeper.server.$main "$folder/zoo.cfg" \
    </dev/null >"$folder/log" 2>&1 3<&- &
server=$!
echo $server >"$folder/pid"
{ cat <&3 >/dev/null; kill -9 $server 2>/dev/null; } &
wait $server 2>/dev/null
if [ $? = 137 ]; then rm -rf "$folder"; fi
