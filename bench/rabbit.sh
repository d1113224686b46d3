#!/bin/sh
# rabbit.sh start|stop|version DIR [PORT]  - a private RabbitMQ (Debian's rabbitmq-server) with its AMQP 1.0 plugin, on
# loopback, with all its files in DIR. `start` declares durable classic queues cq0..cq8 and quorum queues qq0..qq8 and
# prints the broker's process id. Address them as /amq/queue/cq%d and /amq/queue/qq%d, user guest, password guest,
# --vhost vhost:/. For a fan-out send to /exchange/cfan/g%d (or qfan) and receive from /amq/queue/cf%d (or qf%d). The Erlang port mapper is private too, so nothing is left behind by `stop`.
set -e
cmd=$1; dir=$(realpath -m "$2"); port=${3:-15673}; bin=/usr/lib/rabbitmq/bin
mkdir -p "$dir/db" "$dir/log"
printf 'listeners.tcp.default = 127.0.0.1:%s\namqp1_0.default_user = guest\n' "$port" > "$dir/rabbitmq.conf"
echo '[rabbitmq_amqp1_0].' > "$dir/enabled_plugins"
export RABBITMQ_NODENAME=bench@localhost RABBITMQ_CONFIG_FILE="$dir/rabbitmq.conf" RABBITMQ_MNESIA_BASE="$dir/db" RABBITMQ_LOG_BASE="$dir/log" \
       RABBITMQ_ENABLED_PLUGINS_FILE="$dir/enabled_plugins" RABBITMQ_DIST_PORT=$((port + 10000)) RABBITMQ_PID_FILE="$dir/pid" HOME="$dir" \
       ERL_EPMD_PORT=$((port + 20000)) ERL_EPMD_ADDRESS=127.0.0.1
ctl="$bin/rabbitmqctl -q -n bench@localhost"
case $cmd in
start)
    rm -f "$dir/pid"
    setsid nohup $bin/rabbitmq-server > "$dir/log/out" 2>&1 &
    for i in $(seq 120); do [ -s "$dir/pid" ] && $ctl await_startup >/dev/null 2>&1 && break; sleep 0.5; done
    $ctl eval '[rabbit_amqqueue:declare(rabbit_misc:r(<<"/">>, queue, list_to_binary(lists:concat([P,I]))), true, false, A, none, <<"bench">>) || {P,A} <- [{"cq",[]},{"qq",[{<<"x-queue-type">>, longstr, <<"quorum">>}]}], I <- lists:seq(0,8)], ok.' >/dev/null
    # A direct exchange `fan`: each of its keys g0..g4 leads to ten of the durable queues cf0..cf49 and qf0..qf49 of its kind.
    $ctl eval '[begin X = rabbit_misc:r(<<"/">>, exchange, list_to_binary([P, "fan"])), rabbit_exchange:declare(X, direct, true, false, false, [], <<"bench">>), [begin Q = rabbit_misc:r(<<"/">>, queue, list_to_binary(lists:concat([P, "f", I]))), rabbit_amqqueue:declare(Q, true, false, A, none, <<"bench">>), rabbit_binding:add({binding, X, list_to_binary(lists:concat(["g", I rem 5])), Q, []}, <<"bench">>) end || I <- lists:seq(0,49)] end || {P,A} <- [{"c",[]},{"q",[{<<"x-queue-type">>, longstr, <<"quorum">>}]}]], ok.' >/dev/null
    cat "$dir/pid"; echo ;;
stop)
    pid=$(cat "$dir/pid"); $ctl stop >/dev/null
    for i in $(seq 60); do kill -0 "$pid" 2>/dev/null || break; sleep 0.5; done
    epmd -kill >/dev/null ;;
version) $ctl version ;;
*) echo "usage: $0 start|stop|version DIR [PORT]" >&2; exit 2 ;;
esac
