# What a workspace does before the service ends it: its template's command, then the user's own ~/.gpuspawner/on-stop.
# Sent on stdin to `sh -s`. Prints `on-stop`, how it ended, and the last that it wrote; nothing where there is neither.
# Parameters, all from the environment:
#   GPUSPAWNER_ON_STOP_COMMAND  the template's command; empty: none
#   GPUSPAWNER_ON_STOP_SECONDS  how long both may take
#   GPUSPAWNER_END_REASON       why it ends, for what is run
on_stop_run() {
    on_stop_failed=0
    if [ -n "$GPUSPAWNER_ON_STOP_COMMAND" ]; then
        echo "The template's command:"
        sh -c "$GPUSPAWNER_ON_STOP_COMMAND" || on_stop_failed=$?
    fi
    if [ -f "$on_stop_own" ]; then
        echo "$on_stop_own:"
        if [ -x "$on_stop_own" ]; then
            "$on_stop_own"
        elif command -v bash >/dev/null 2>&1; then
            bash "$on_stop_own"
        else
            sh "$on_stop_own"
        fi || on_stop_failed=$?
    fi
    exit "$on_stop_failed"
}
on_stop() {
    export GPUSPAWNER_END_REASON
    cd "${HOME:-/}" || return
    on_stop_own=$PWD/.gpuspawner/on-stop
    [ -n "$GPUSPAWNER_ON_STOP_COMMAND" ] || [ -f "$on_stop_own" ] || return
    umask 077
    mkdir -p .gpuspawner 2>/dev/null
    on_stop_log=.gpuspawner/on-stop.log
    : 2>/dev/null >"$on_stop_log" || on_stop_log=/dev/null # a home that is full, or not writable: run it all the same
    (on_stop_run) >"$on_stop_log" 2>&1 &
    on_stop_pid=$!
    # What watches it is ended and waited for: few images have a first process that reaps what it did not start.
    (
        trap 'kill "$!"; wait "$!"; exit' TERM
        sleep "$GPUSPAWNER_ON_STOP_SECONDS" &
        wait "$!"
        kill -TERM "$on_stop_pid"
    ) >/dev/null 2>&1 &
    on_stop_watch=$!
    wait "$on_stop_pid"
    on_stop_code=$?
    kill -TERM "$on_stop_watch" 2>/dev/null
    wait "$on_stop_watch" 2>/dev/null
    printf 'on-stop %s\n' "$on_stop_code"
    tail -c 16384 "$on_stop_log"
}
on_stop </dev/null
