#!/bin/sh
# artemis.sh start|stop|version|find|addresses DIR [PORT]  - a private Apache ActiveMQ Artemis on loopback, AMQP 1.0 only, with all its
# files in DIR. `find` says where the distribution is, and has status 1 if there is none: $ARTEMIS_HOME, or the newest archive
# in the local Maven repository, which `start` unpacks into DIR:
#   mvn dependency:get -Dtransitive=false -Dartifact=org.apache.activemq:apache-artemis:2.44.0:tar.gz:bin
# `start` makes a broker as `artemis create` does, with persistence and a journal that is synced (through libaio where it is
# installed), durable anycast queues bench0..bench8, and prints the broker's process id. Address them as bench%d, user bench,
# password bench. For a fan-out send to `fan` with --numbers 100 and receive from fan::f%d, f0..f49, with the filters of bench/run.py.
set -e
cmd=$1; dir=$(realpath -m "${2:-.}"); port=${3:-15675}

archive() { ls "${MAVEN_REPOSITORY:-$HOME/.m2/repository}"/org/apache/activemq/apache-artemis/*/apache-artemis-*-bin.tar.gz 2>/dev/null | sort -V | tail -n 1; }

find_it() {
    if [ -n "$ARTEMIS_HOME" ]; then [ -x "$ARTEMIS_HOME/bin/artemis" ] && echo "$ARTEMIS_HOME"; else archive | grep .; fi
}

addresses() {
    for i in $(seq 0 8); do echo "<address name=\"bench$i\"><anycast><queue name=\"bench$i\"><durable>true</durable></queue></anycast></address>"; done
    echo '<address name="fan"><multicast>'
    for i in $(seq 0 49); do
        low=$((i / 2 % 5 * 20))
        if [ $((i % 2)) = 0 ]; then filter="n &gt;= $low AND n &lt; $((low + 20))"; else filter="g = 'g$((i % 5))'"; fi
        echo "<queue name=\"f$i\"><durable>true</durable><filter string=\"$filter\"/></queue>"
    done
    echo '</multicast></address>'
}

case $cmd in
find) find_it ;;
addresses) addresses ;;
version) basename "$(find_it)" -bin.tar.gz | sed 's/^apache-artemis-//' ;;
start)
    mkdir -p "$dir"
    home=$(find_it) || { echo "artemis.sh: no distribution found, see the top of this file" >&2; exit 1; }
    if [ -f "$home" ]; then mkdir -p "$dir/home"; tar -xzf "$home" -C "$dir/home" --strip-components 1; home=$dir/home; fi
    unset ARTEMIS_HOME
    "$home/bin/artemis" create "$dir/instance" --silent --name bench --user bench --password bench --require-login --no-autocreate \
        --no-web --no-hornetq-acceptor --no-mqtt-acceptor --no-stomp-acceptor --no-amqp-acceptor --host 127.0.0.1 --default-port "$port" >"$dir/create.log" 2>&1
    etc=$dir/instance/etc/broker.xml
    sed -i -e 's/protocols=[A-Z,]*/protocols=AMQP/' "$etc"
    addresses >"$dir/addresses"
    sed -i -e "/<addresses>/r $dir/addresses" "$etc"
    # What makes an acknowledgement worth having: if a version of the future drops one of them, nothing is measured.
    for needed in '<persistence-enabled>true<' '<journal-datasync>true<' 'protocols=AMQP;' "tcp://127.0.0.1:$port?"; do
        grep -q -F -e "$needed" "$etc" || { echo "artemis.sh: no $needed in what \`artemis create\` wrote" >&2; exit 1; }
    done
    setsid nohup "$dir/instance/bin/artemis" run >"$dir/out.log" 2>&1 &
    echo $! >"$dir/pid"
    for i in $(seq 120); do
        grep -q AMQ221007 "$dir/out.log" && break
        kill -0 "$(cat "$dir/pid")" 2>/dev/null || { tail -n 5 "$dir/out.log" >&2; exit 1; }
        sleep 0.5
    done
    cat "$dir/pid" ;;
stop)
    pid=$(cat "$dir/pid"); kill "$pid" 2>/dev/null || exit 0
    for i in $(seq 60); do kill -0 "$pid" 2>/dev/null || exit 0; sleep 0.5; done
    kill -9 "$pid" ;;
*) echo "usage: $0 start|stop|version|find|addresses DIR [PORT]" >&2; exit 2 ;;
esac
