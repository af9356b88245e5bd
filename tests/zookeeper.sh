#!/bin/sh
# Runs a ZooKeeper for tests: zookeeper.sh PORT FOLDER [SWEEP_MS [NUMBER MEMBER…]]
#
# It listens on 127.0.0.1:PORT, keeps its data and its log in FOLDER, and looks for containers and
# TTL nodes to remove once in SWEEP_MS. It ends when its stdin ends: with its parent, however that
# dies. Then the folder goes too; it stays when the server ended by itself, with the log in it.
#
# With a NUMBER it is that member of an ensemble, whose members are HOST:PORT:ELECTION_PORT, the first
# number 1. FOLDER/pid is the process to stop and continue.
#
# With SECURE_PORT in the environment it serves TLS there, too: SERVER_PEM has its key and certificate, and every client
# needs a certificate of the authority in CA_PEM.
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
if [ -n "$SECURE_PORT" ]; then
    cat >>"$folder/zoo.cfg" <<END
secureClientPort=$SECURE_PORT
secureClientPortAddress=127.0.0.1
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
authProvider.x509=org.apache.zookeeper.server.auth.X509AuthenticationProvider
ssl.keyStore.location=$SERVER_PEM
ssl.keyStore.type=PEM
ssl.trustStore.location=$CA_PEM
ssl.trustStore.type=PEM
END
fi
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
# With the parts of Netty that Debian's list in zookeeper.jar lacks.
jars=/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar
for part in codec resolver transport-native-unix-common; do jars=$jars:/usr/share/java/netty-$part.jar; done
exec 3<&0
java -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData \
    -Dzookeeper.extendedTypesEnabled=true -Dzookeeper.admin.enableServer=false \
    -Dzookeeper.forceSync=no -Dzookeeper.preAllocSize=64 \
    -Dznode.container.checkIntervalMs="$sweep" \
    -cp "$jars" \
    org.apache.zookeeper.server.$main "$folder/zoo.cfg" \
    </dev/null >"$folder/log" 2>&1 3<&- &
server=$!
echo $server >"$folder/pid"
{ cat <&3 >/dev/null; kill -9 $server 2>/dev/null; } &
wait $server 2>/dev/null
if [ $? = 137 ]; then rm -rf "$folder"; fi
