# Functions that the scripts of several packages have: dist/build.sh puts this file in the place of their line `#include state.sh`.

# What of smolet's state has been made for pods that are left: their volumes are there, and below a subPath's mount the machine's
# own files.
has_pods() {
    for pod in "$state"/pods/*; do
        [ ! -e "$pod" ] || return 0
    done
    # Where /proc is not mounted nothing runs.
    grep -qs " $state/" /proc/self/mountinfo
}

# Removes the state directory $state, unless pods are left. What the owner has put there stays: image archives, seccomp profiles,
# the logins of registries.
purge_state() {
    if has_pods; then
        # Without its agent the embedded runtime has nobody who could be asked to end them.
        how="End them (crictl stopp, crictl rmp), unmount what is left mounted there"
        [ ! -d "$state/runtime" ] || how="Reboot, which ends them"
        echo "smolet: pods are left, and $state stays with their volumes. $how, and remove it." >&2
        return 0
    fi
    for entry in "$state"/* "$state"/.[!.]*; do
        case "$entry" in
        */images | */seccomp) rmdir "$entry" 2>/dev/null || true ;;
        */config.json) ;;
        *) rm -rf "$entry" ;;
        esac
    done
    [ ! -d "$state" ] || rmdir "$state" 2>/dev/null || true
    if [ -d "$state" ]; then
        echo "smolet: $state keeps your image archives, seccomp profiles and logins; remove it if nobody needs them." >&2
    fi
}

# Sockets without a program behind them.
purge_runtime_directory() {
    has_pods || grep -qs " /run/smolet/" /proc/self/mountinfo || rm -rf /run/smolet
}

# Prints the installer of a smolet that was installed from an archive, in whatever prefix, if there is one: a package beside it would
# have the same service and the same settings.
archive_installer() {
    named=$(for service in /etc/systemd/system/smolet.service /etc/init.d/smolet; do
        [ ! -e $service ] || sed -n 's|^[^#]*[ ="]\(/[A-Za-z0-9/._@+~-]*\)/bin/smolet.*|\1|p' $service
    done)
    for of in /usr/local /usr $named; do
        if [ -e "$of/lib/smolet/installed" ]; then
            echo "$of/lib/smolet/install.sh"
            return 0
        fi
    done
}

# Whether k3s-agent.service has been made to run the program $1, below the root directory $2, in the place of k3s (smolet k3s takeover).
is_taken_over() {
    grep -qsF "ExecStart=$1 agent" "${2:-}/etc/systemd/system/k3s-agent.service.d/smolet.conf"
}

# Whether that service runs the program $1 now: so, or by a link in the place of k3s.
runs_k3s_agent() {
    [ -d /run/systemd/system ] || return 1
    ! is_taken_over "$1" || return 0
    main=$(systemctl show --property=MainPID --value k3s-agent.service 2>/dev/null) || return 1
    case $(readlink "/proc/${main:-0}/exe") in
    "$1" | "$1 (deleted)") return 0 ;;
    esac
    return 1
}

# Prints what has to be done before the program $1 below the root directory $2 is removed, if anything: without its program
# k3s-agent.service fails for good, and so does the way back.
before_removal() {
    if is_taken_over "$@"; then echo "$1 k3s takeover --back"
    elif [ -z "${2:-}" ] && runs_k3s_agent "$1"; then echo "systemctl disable --now k3s-agent.service"
    fi
}
