# What the kubelet runs in a workspace's container before it ends it, within the pod's grace. Kubernetes sends SIGTERM to
# the container's first process alone, and kills the rest once that has ended. So what runs in a kernel, a terminal or
# an SSH session, each a session of its own, and handles SIGTERM is sent it here, and waited for.
# Where the cluster ends the pod, the service announces an end to the user. The server is kept until then.
# $1: how long at most, in seconds. $2: how long to wait for the service to say which it is.
session_of() { # also tells in $state how the process is
    session='' state=''
    { read -r line <"/proc/$1/stat"; } 2>/dev/null || return
    set -- ${line##*) }
    state=$1 session=$4
}
saving() {
    for folder in /proc/[0-9]*; do
        session_of "${folder#/proc/}"
        case $session in '' | "$server" | "$own") continue ;; esac
        [ "$state" != Z ] || continue
        { while read -r name mask; do
            [ "$name" = SigCgt: ] || continue
            case ${mask%???} in *[4-7c-f]) echo "${folder#/proc/}" ;; esac # bit 14: SIGTERM is handled
        done <"$folder/status"; } 2>/dev/null
    done
}
any_left() { # of these alone: a kernel that ended is started again
    [ -n "$programs" ] || return 1
    for program in $(saving); do
        for asked in $programs; do
            [ "$program" != "$asked" ] || return 0
        done
    done
    return 1
}
now() { date +%s; }
is_held() { # by the notice file, which the service writes; until it has said something of this end, for a while
    [ -n "$GPUSPAWNER_NOTICE" ] || return 1
    text=''
    { read -r text <"${HOME:-/}/$GPUSPAWNER_NOTICE"; } 2>/dev/null
    case $text in
    *'"kind": "stopped"'*) return 1 ;;
    *'"kind": "preempted"'*)
        ends=${text#*'"ends_at": '}
        ends=${ends%%[!0-9]*}
        if [ "${ends:-0}" -ge "$begun" ] && [ "${ends:-0}" -le "$latest" ]; then # else it is of another end
            [ "$ends" -gt "$(now)" ]
            return
        fi
        ;;
    esac
    [ "$(now)" -lt "$((begun + $2))" ]
}
begun=$(now)
latest=$((begun + $1 + 5)) # the service's clock may be ahead
session_of $$ && own=$session
session_of 1 && server=$session
programs=''
[ -z "$own" ] || [ -z "$server" ] || programs=$(saving)
[ -z "$programs" ] || kill -TERM $programs 2>/dev/null
while [ "$(now)" -lt "$((begun + $1))" ] && { any_left || is_held "$@"; }; do
    sleep 0.2 2>/dev/null || sleep 1
done
exit 0
