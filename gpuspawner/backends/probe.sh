# Prints what a workspace does with its GPUs. It is sent on stdin to `sh -s`, so it needs only a POSIX shell, ls and
# sleep in the image. probe.py reads the output, and accepts nothing without the end marker.
# Text that is not a number of the shell's own is printed with printf, because echo turns \n in a name into a line end.
# Parameters, all from the environment:
#   GPUSPAWNER_PROBE_GPUS      leased UUIDs, separated by commas; empty: every GPU that nvidia-smi shows
#   GPUSPAWNER_PROBE_READINGS  number of readings; 0: the workspace has no GPU
#   GPUSPAWNER_PROBE_PAUSE     seconds between readings
#   GPUSPAWNER_PROBE_DEVICES   the pattern of GPU device files
#   GPUSPAWNER_PROBE_VENDOR    vendor of the GPUs: AMD, Intel; anything else: NVIDIA
#   GPUSPAWNER_PROBE_CGROUP    the folder where a pod sees its own control group
#   GPUSPAWNER_PROBE_PIDS      the workspace's processes, separated by spaces, or `all` in a pod
probe_process() { # pid: prints its CPU time, and what else is known of it
    stat=
    { while IFS= read -r part; do stat="$stat $part"; done <"/proc/$1/stat"; } 2>/dev/null
    case $stat in
    *')'*) ;;
    *)
        [ -z "$hidepid" ] || echo hidden
        return
        ;;
    esac
    pid=$1 name=${stat#*'('}
    name=${name%')'*}
    # The name is in parentheses and may itself contain spaces, parentheses and line ends: cut at the last one.
    # shellcheck disable=SC2086
    set -- ${stat##*)}
    [ "$#" -ge 20 ] || return
    [ "$2" = "$$" ] && return # a process of the probe
    case $1 in Z | X) return ;; esac # ended: it holds nothing, and its time is counted with its parent
    echo "process $pid $2 ${20} $((${12} + ${13})) $((${14} + ${15}))"
    [ -z "$resident" ] || resident=$((resident + ${22:-0}))
    [ "$5" != 0 ] && [ "$4" = "$pid" ] && [ "$pid" != 1 ] && probe_terminal "$pid" "$3" "$5" "$6"
    case $name in
    sshd* | node | MainThread) probe_title "$pid" "$name" ;;
    nvidia-smi | nvtop | nvitop | gpustat) echo "observes $pid" ;; # opens the device only to read it
    esac
    if [ -r "/proc/$pid/fd" ] && [ -x "/proc/$pid/fd" ]; then
        folders="$folders /proc/$pid/fd"
    else
        echo "unreadable $pid"
    fi
}
probe_hidepid() { # sets hidepid where /proc hides the processes of other users from this one
    hidepid='' capabilities=''
    { while read -r _ at _ options _; do
        case $at:,$options, in
        /proc:*,hidepid=0,* | /proc:*,hidepid=off,*) hidepid= ;;
        /proc:*,hidepid=*) hidepid=yes ;;
        /proc:*) hidepid= ;;
        esac
    done; } 2>/dev/null </proc/self/mounts
    [ -n "$hidepid" ] || return
    { while read -r key value; do
        case $key in CapEff:) capabilities=$value ;; esac
    done; } 2>/dev/null </proc/self/status
    [ $((0x${capabilities:-0} & 0x80000)) -eq 0 ] || hidepid= # CAP_SYS_PTRACE sees them all
}
probe_terminal() { # pid, its group, tty, foreground group: of the process that leads a session on a terminal
    [ "$((($3 >> 8) & 4095))" = 136 ] || return # no pty
    tty=/dev/pts/$((($3 & 255) | (($3 >> 12) & 1048320)))
    ttys="$ttys $tty"
    echo "terminal $tty $2 $4"
}
probe_title() { # pid, name: reads the command line of these few only, because a shell reads byte by byte
    title=
    { IFS= read -r title <"/proc/$1/cmdline"; } 2>/dev/null
    case $2:$title in
    sshd*:*\[*\]*) ;; # the listener, or a process of a session that is not open yet
    sshd*:sshd*': '*) echo "ssh $1" ;;
    sshd*) ;;
    *--type=extensionHost*) echo "editor $1" ;;
    esac
}
probe_open_files() { # reads `ls -ln` of several fd folders, and its exit code
    pid='' unreadable='' ended='' listed=''
    while IFS= read -r line; do
        case $line in
        'ls '[012]) ended=$listed ;; # above 0: a process had ended by then, or ls listed nothing
        /proc/self/fd:) pid=self listed=yes ;;
        /proc/*/fd:)
            pid=${line#/proc/}
            pid=${pid%/fd:}
            ;;
        l*' -> '*)
            # shellcheck disable=SC2254
            case $pid:${line#*' -> '} in
            self:*) ;; # listed so that ls always prints the names of the folders
            $pid:$GPUSPAWNER_PROBE_DEVICES) printf 'open %s %s\n' "$pid" "${line#*' -> '}" ;;
            "$pid:/memfd:gpuspawner-kernels"*) probe_kernels "$pid" "$line" ;;
            "$pid:/dev/nvidia-uvm") echo "computes $pid" ;; # CUDA opens it; programs that only read the GPU do not
            esac
            ;;
        l*) # a link that could not be followed: it was closed meanwhile, or is forbidden
            [ "$unreadable" != "$pid" ] && [ -h "/proc/$pid/fd/${line##* }" ] && unreadable=$pid && echo "unreadable $pid"
            ;;
        esac
    done
    [ -n "$ended" ] || echo 'unreadable 0' # there is no ls, or it was killed: any process may hold a GPU
}
probe_kernels() { # pid, line of ls: the file of our Jupyter server extension, and the pid that its process knows
    file=${2%' -> '*}
    told='' watched='' own=$1
    { IFS= read -r told && IFS= read -r watched; } 2>/dev/null <"/proc/$1/fd/${file##* }"
    { while IFS= read -r part; do
        case $part in NSpid:*) own=${part##*[!0-9]} ;; esac # another one in a PID namespace within ours
    done <"/proc/$1/status"; } 2>/dev/null
    printf 'kernels %s %s\n' "$own" "$told"
    [ -z "$watched" ] || printf 'monitor %s %s %s\n' "$1" "$own" "$watched"
}
probe_terminals() { # when each terminal was last read or written
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
        for fields in $known_fields; do
            text=$(
                nvidia-smi ${GPUSPAWNER_PROBE_GPUS:+-i "$GPUSPAWNER_PROBE_GPUS"} \
                    "--query-gpu=$fields" --format=csv,noheader,nounits 2>&1
            )
            code=$?
            [ "$code" = 2 ] || { known_fields=$fields && break; }
        done
        ;;
    esac
    echo "reading $code$tool"
    printf '%s\n' "$text" | while IFS= read -r line; do printf 'smi %s\n' "$line"; done
}
probe_buffer() { # NVIDIA only: the driver's sample buffers cover the time between the readings
    case $GPUSPAWNER_PROBE_VENDOR in AMD | Intel) return 1 ;; esac
    text=$(nvidia-smi ${GPUSPAWNER_PROBE_GPUS:+-i "$GPUSPAWNER_PROBE_GPUS"} -q -d UTILIZATION 2>&1) || return
    printf '%s\n' "$text" | while IFS= read -r line; do printf 'buffer %s\n' "$line"; done
}
probe_kills() { # how many processes of the container were killed because memory ran out, in either version of cgroups
    {
        while read -r key value; do
            [ "$key" != oom_kill ] || printf 'kills %s\n' "$value"
        done <"$GPUSPAWNER_PROBE_CGROUP/memory.events" || while read -r key value; do
            [ "$key" != oom_kill ] || printf 'kills %s\n' "$value"
        done <"$GPUSPAWNER_PROBE_CGROUP/memory/memory.oom_control"
    } 2>/dev/null
}
probe_memory() { # the container's memory in use, without file caches that are dropped first, in either version of cgroups
    for files in memory.current:memory.stat:inactive_file \
        memory/memory.usage_in_bytes:memory/memory.stat:total_inactive_file; do
        used='' cache=0 cached=${files#*:}
        { read -r used <"$GPUSPAWNER_PROBE_CGROUP/${files%%:*}"; } 2>/dev/null || continue
        {
            while read -r key value; do
                [ "$key" != "${cached#*:}" ] || cache=$value
            done <"$GPUSPAWNER_PROBE_CGROUP/${cached%%:*}"
        } 2>/dev/null
        probe_bytes "$used" "$cache"
        return
    done
}
probe_bytes() { # a number of bytes, and those that do not count
    case $1$2 in '' | *[!0-9]*) return ;; esac
    [ "$1" -lt "$2" ] || echo "memory $(($1 - $2))"
}
probe_clock() { # prefix and suffix of the line
    uptime=
    { read -r uptime _ </proc/uptime; } 2>/dev/null
    printf '%s %s\n' "$1" "${uptime:-?}$2"
}
probe() {
    LC_ALL=C
    export LC_ALL
    unset QUOTING_STYLE TIME_STYLE # GNU ls obeys them and would write other lines, or none
    set -f
    # A driver fails a whole query (exit code 2) for one field that it does not know: 418 does not know the MIG mode, 470
    # does not know the utilization of encoder and decoder.
    fields=utilization.gpu,memory.used,memory.total,persistence_mode
    known_fields=index,uuid,name,mig.mode.current,$fields
    known_fields="$known_fields,utilization.encoder,utilization.decoder $known_fields index,uuid,name,$fields"
    echo 'gpuspawner-probe 1 begin'
    probe_clock clock " $(getconf CLK_TCK 2>/dev/null || echo 100)"
    folders=
    ttys=
    pids=$GPUSPAWNER_PROBE_PIDS
    probe_hidepid
    if [ "$pids" = all ]; then
        [ -z "$hidepid" ] || echo hidden
        pids=
        set +f
        for entry in /proc/[0-9]*; do
            [ "$entry" = "/proc/$$" ] || pids="$pids ${entry#/proc/}"
        done
        set -f
        probe_kills
        probe_memory
        resident=
    else
        resident=0 # of processes on a machine, which have no cgroup of their own
    fi
    for pid in $pids; do probe_process "$pid"; done
    [ -z "$resident" ] || probe_bytes "$((resident * $(getconf PAGESIZE 2>/dev/null || echo 4096)))" 0
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
# To redirect, dash and busybox save a descriptor under a number above 9.
(: </dev/null) 2>/dev/null || ulimit -S -n "$(ulimit -H -n)"
if (: </dev/null) 2>/dev/null; then
    probe </dev/null
else
    echo 'gpuspawner-probe 1 begin'
    echo "files $(ulimit -n)"
    echo 'gpuspawner-probe 1 end'
fi
