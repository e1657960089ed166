# Tells what a workspace does with its GPUs. Sent on stdin to `sh -s`, so that any image with a POSIX shell, ls and
# sleep will do. What it prints is read by probe.py, which believes nothing without the end marker.
# What is not a number of the shell's own is printed by printf: echo makes line ends of the \n in a name.
# Parameters, all from the environment:
#   GPUSPAWNER_PROBE_GPUS      leased UUIDs with commas between; empty: whatever nvidia-smi shows
#   GPUSPAWNER_PROBE_READINGS  how many readings; 0: the workspace has no GPU
#   GPUSPAWNER_PROBE_PAUSE     seconds between readings
#   GPUSPAWNER_PROBE_DEVICES   the pattern of GPU device files
#   GPUSPAWNER_PROBE_VENDOR    whose GPUs they are: AMD, Intel; anything else: NVIDIA
#   GPUSPAWNER_PROBE_CGROUP    where a pod sees its own control group
#   GPUSPAWNER_PROBE_PIDS      the workspace's processes with spaces between, or `all` where it is alone (a pod)
probe_process() { # pid: prints one line and, where its open files cannot be listed, a second one
    stat=
    { while IFS= read -r part; do stat="$stat $part"; done <"/proc/$1/stat"; } 2>/dev/null
    case $stat in *')'*) ;; *) return ;; esac
    pid=$1 name=${stat#*'('}
    name=${name%')'*}
    # The name stands in parentheses and may itself hold spaces, parentheses and line ends: cut at the last one.
    # shellcheck disable=SC2086
    set -- ${stat##*)}
    [ "$#" -ge 20 ] || return
    [ "$2" = "$$" ] && return # the probe's own
    case $1 in Z | X) return ;; esac # ended: it holds nothing, and its parent counts its time
    echo "process $pid $2 ${20} $((${12} + ${13})) $((${14} + ${15}))"
    [ "$5" != 0 ] && [ "$4" = "$pid" ] && [ "$pid" != 1 ] && probe_terminal "$pid" "$3" "$5" "$6"
    case $name in sshd* | node | MainThread) probe_title "$pid" "$name" ;; esac
    if [ -r "/proc/$pid/fd" ] && [ -x "/proc/$pid/fd" ]; then
        folders="$folders /proc/$pid/fd"
    else
        echo "unreadable $pid"
    fi
}
probe_terminal() { # pid, its group, tty, the group in front: of the process that leads a session on a terminal
    [ "$((($3 >> 8) & 4095))" = 136 ] || return # no pty
    tty=/dev/pts/$((($3 & 255) | (($3 >> 12) & 1048320)))
    ttys="$ttys $tty"
    echo "terminal $tty $2 $4"
}
probe_title() { # pid, name: only these few have their command lines read, a shell reads byte by byte
    title=
    { IFS= read -r title <"/proc/$1/cmdline"; } 2>/dev/null
    case $2:$title in
    sshd*:*\[*\]*) ;; # the listener, or a part of one that is no session yet
    sshd*:sshd*': '*) echo "ssh $1" ;;
    sshd*) ;;
    *--type=extensionHost*) echo "editor $1" ;;
    esac
}
probe_open_files() { # reads `ls -ln` of several fd folders, and how it ended
    pid='' unreadable='' ended='' listed=''
    while IFS= read -r line; do
        case $line in
        'ls '[012]) ended=$listed ;; # above 0: some process had ended by then, or ls listed nothing at all
        /proc/self/fd:) pid=self listed=yes ;;
        /proc/*/fd:)
            pid=${line#/proc/}
            pid=${pid%/fd:}
            ;;
        l*' -> '*)
            # shellcheck disable=SC2254
            case $pid:${line#*' -> '} in
            self:*) ;; # asked for so that ls always prints which folder it lists
            $pid:$GPUSPAWNER_PROBE_DEVICES) printf 'open %s %s\n' "$pid" "${line#*' -> '}" ;;
            "$pid:/memfd:gpuspawner-kernels"*) probe_kernels "$pid" "$line" ;;
            "$pid:/dev/nvidia-uvm") echo "computes $pid" ;; # CUDA has it open, and who only measures has not
            esac
            ;;
        l*) # a link that could not be followed: closed meanwhile, or forbidden
            [ "$unreadable" != "$pid" ] && [ -h "/proc/$pid/fd/${line##* }" ] && unreadable=$pid && echo "unreadable $pid"
            ;;
        esac
    done
    [ -n "$ended" ] || echo 'unreadable 0' # no ls, or it was killed: there may be more
}
probe_kernels() { # pid, line of ls: what our Jupyter server extension keeps there, and who has it by its own name
    file=${2%' -> '*}
    told='' watched='' own=$1
    { IFS= read -r told && IFS= read -r watched; } 2>/dev/null <"/proc/$1/fd/${file##* }"
    { while IFS= read -r part; do
        case $part in NSpid:*) own=${part##*[!0-9]} ;; esac # in a PID namespace within ours the pid is another one
    done <"/proc/$1/status"; } 2>/dev/null
    printf 'kernels %s %s\n' "$own" "$told"
    [ -z "$watched" ] || printf 'monitor %s %s %s\n' "$1" "$own" "$watched"
}
probe_terminals() { # when each was last read or written
    # shellcheck disable=SC2086
    printf 'now %s\n' "$(date +%s 2>/dev/null)" && stat -c 'used %n %X %Y' $ttys 2>/dev/null
}
probe_devices() {
    (
        IFS=
        set +f
        line_end='
'
        # shellcheck disable=SC2086
        for device in $GPUSPAWNER_PROBE_DEVICES; do
            case $device in *"$line_end"*) continue ;; esac # a name must not print lines of its own
            [ -e "$device" ] && printf 'device %s\n' "$device"
        done
        for file in /proc/driver/nvidia/gpus/*/information; do
            [ -r "$file" ] || continue
            while IFS= read -r line; do
                case $line in 'GPU UUID:'* | 'Device Minor:'*) printf 'driver %s\n' "$line" ;; esac
            done <"$file"
        done
    )
}
probe_reading() {
    tool=
    case $GPUSPAWNER_PROBE_VENDOR in
    AMD)
        tool=' amd-smi' text=$(amd-smi metric --usage --mem-usage --csv 2>&1)
        code=$?
        if [ "$code" = 127 ]; then
            tool=' rocm-smi' text=$(rocm-smi --showuse --showmeminfo vram --csv 2>&1)
            code=$?
        fi
        ;;
    Intel)
        tool=' xpu-smi' text=$(xpu-smi dump -d -1 -m 0,18 -i 1 -n 2 2>&1)
        code=$?
        ;;
    *)
        text=$(
            nvidia-smi ${GPUSPAWNER_PROBE_GPUS:+-i "$GPUSPAWNER_PROBE_GPUS"} \
                --query-gpu=index,uuid,name,mig.mode.current,utilization.gpu,memory.used,memory.total,persistence_mode \
                --format=csv,noheader,nounits 2>&1
        )
        code=$?
        ;;
    esac
    echo "reading $code$tool"
    printf '%s\n' "$text" | while IFS= read -r line; do printf 'smi %s\n' "$line"; done
}
probe_buffer() { # the driver's own sample buffer, of NVIDIA alone: what fell between the readings
    case $GPUSPAWNER_PROBE_VENDOR in AMD | Intel) return 1 ;; esac
    text=$(nvidia-smi ${GPUSPAWNER_PROBE_GPUS:+-i "$GPUSPAWNER_PROBE_GPUS"} -q -d UTILIZATION 2>&1) || return
    printf '%s\n' "$text" | while IFS= read -r line; do printf 'buffer %s\n' "$line"; done
}
probe_kills() { # how many processes of its container were killed for want of memory, by either version of cgroups
    {
        while read -r key value; do
            [ "$key" != oom_kill ] || printf 'kills %s\n' "$value"
        done <"$GPUSPAWNER_PROBE_CGROUP/memory.events" || while read -r key value; do
            [ "$key" != oom_kill ] || printf 'kills %s\n' "$value"
        done <"$GPUSPAWNER_PROBE_CGROUP/memory/memory.oom_control"
    } 2>/dev/null
}
probe_clock() { # what begins now, and what follows the time
    uptime=
    { read -r uptime _ </proc/uptime; } 2>/dev/null
    printf '%s %s\n' "$1" "${uptime:-?}$2"
}
probe() {
    LC_ALL=C
    export LC_ALL
    unset QUOTING_STYLE TIME_STYLE # GNU ls obeys them: it would write other lines, or none
    set -f
    echo 'gpuspawner-probe 1 begin'
    probe_clock clock " $(getconf CLK_TCK 2>/dev/null || echo 100)"
    folders=
    ttys=
    pids=$GPUSPAWNER_PROBE_PIDS
    if [ "$pids" = all ]; then
        pids=
        set +f
        for entry in /proc/[0-9]*; do
            [ "$entry" = "/proc/$$" ] || pids="$pids ${entry#/proc/}"
        done
        set -f
        probe_kills
    fi
    for pid in $pids; do probe_process "$pid"; done
    [ -z "$ttys" ] || probe_terminals
    [ "$GPUSPAWNER_PROBE_READINGS" -eq 0 ] || probe_devices
    # shellcheck disable=SC2086
    [ -z "$folders" ] || { ls -ln /proc/self/fd $folders 2>/dev/null; echo "ls $?"; } | probe_open_files
    left=$GPUSPAWNER_PROBE_READINGS
    [ "$left" -eq 0 ] || probe_clock from
    while [ "$left" -gt 0 ]; do
        probe_reading
        left=$((left - 1))
        [ "$left" -eq 0 ] || sleep "$GPUSPAWNER_PROBE_PAUSE" 2>/dev/null || sleep 1
    done
    [ "$GPUSPAWNER_PROBE_READINGS" -eq 0 ] || { probe_buffer && probe_clock until; }
    echo 'gpuspawner-probe 1 end'
}
probe </dev/null
