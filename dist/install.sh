#!/bin/sh
# Installs smolet from the unpacked archive that this file is in. Needs no network, and no more than a POSIX shell (busybox's does)
# and sha256sum. Run again it changes nothing; run from a newer archive it upgrades.
#
#   ./install.sh [OPTION...]
#   ./install.sh --uninstall [--purge] [--prefix DIR] [--root DIR]     the same file is in PREFIX/lib/smolet afterwards
#
#   --prefix DIR   the program, man pages, completions and documents go below it (default: /usr/local)
#   --root DIR     installs into the root file system below DIR, for an image that is put together: nothing is started, and the
#                  machine may be another one
#   --init NAME    systemd, openrc, procd, or none: no service (default: the one that is found)
#   --key FILE     the archive has to be signed with this public key (minisign's or signify's), or nothing is installed
#   --from DIR     installs the archive that is unpacked there, with this file that you trust
#   --no-start     the service is enabled, and not started
#   --no-docs      leaves out man pages, completions and documents
#   --uninstall    stops the agent, not its pods, and removes what was installed; /etc/smolet, the service's arguments and the
#                  state stay
#   --purge        with --uninstall: removes them too, but for manifests, image archives, seccomp profiles and logins
set -eu
umask 022
export LC_ALL=C

die() {
    echo "install.sh: $*" >&2
    exit 1
}

#include state.sh

here=$(cd "$(dirname "$0")" && pwd)
root='' prefix='' init='' key='' from='' action=install purge='' starts=yes docs=yes
while [ $# -gt 0 ]; do
    option=$1
    case $option in
    --*=*)
        value=${option#*=} option=${option%%=*}
        shift
        set -- "$option" "$value" "$@"
        ;;
    esac
    case $option in
    --prefix | --root | --init | --key | --from)
        [ $# -ge 2 ] || die "$option needs a value"
        case $option in
        --prefix) prefix=$2 ;;
        --root) root=$2 ;;
        --init) init=$2 ;;
        --key) key=$2 ;;
        --from) from=$2 ;;
        esac
        shift
        ;;
    --uninstall) action=uninstall ;;
    --purge) purge=yes ;;
    --no-start) starts='' ;;
    --no-docs) docs='' ;;
    --help | -h)
        sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p;}' "$0"
        exit 0
        ;;
    *) die "unknown option $option; --help lists them" ;;
    esac
    shift
done
[ -z "$purge" ] || [ $action = uninstall ] || die "--purge goes with --uninstall"
case $init in '' | systemd | openrc | procd | none) ;; *) die "--init: $init is none of systemd, openrc, procd, none" ;; esac

# An installed copy of this file knows where it is.
case $here in
*/lib/smolet) [ -n "$prefix" ] || [ ! -e "$here/installed" ] || prefix=${here%/lib/smolet} ;;
esac
case $root in
'' | /*) ;;
*) root=$(cd "$root" && pwd) ;;
esac
root=${root%/}
case $prefix in "$root"/*) [ -z "$root" ] || prefix=${prefix#"$root"} ;; esac
prefix=${prefix:-/usr/local} prefix=${prefix%/}
case $prefix in
/*) ;;
*) die "--prefix $prefix: an absolute path is needed" ;;
esac
# Ordinary characters in all services, in a replacement of sed and in a pattern of grep.
case $root$prefix in
*[!A-Za-z0-9/._@+~-]*) die "--root and --prefix: letters, digits, / . _ @ + ~ and - alone, not $root$prefix" ;;
esac
[ -z "$root" ] || [ -d "$root" ] || die "--root $root: no such directory"
record=$prefix/lib/smolet/installed
[ -n "$root" ] || [ "$(id -u)" = 0 ] || die "run this as root"

# The init that runs, or in a root file system that does not run the one that it has.
find_init() {
    if [ -z "$root" ] && [ -d /run/systemd/system ]; then echo systemd
    elif [ -z "$root" ] && [ -d /run/openrc ]; then echo openrc
    elif [ -x "$root/sbin/procd" ]; then echo procd
    elif [ -x "$root/lib/systemd/systemd" ] || [ -x "$root/usr/lib/systemd/systemd" ]; then echo systemd
    elif [ -x "$root/sbin/openrc-run" ] || [ -x "$root/usr/sbin/openrc-run" ]; then echo openrc
    else echo none
    fi
}

# Whether that init is the first process of this machine, so that it can be asked.
runs() {
    [ -z "$root" ] || return 1
    case $init in
    systemd) [ -d /run/systemd/system ] ;;
    openrc) [ -d /run/openrc ] ;;
    procd) [ -S /var/run/ubus/ubus.sock ] || [ -S /var/run/ubus.sock ] ;;
    *) return 1 ;;
    esac
}

# Units of a distribution are where its packages put them; others beside the owner's.
unit_directory() { case $prefix in /usr) echo /usr/lib/systemd/system ;; *) echo /etc/systemd/system ;; esac; }

# service enable|disable|start|restart|stop: `restart` leaves one that does not run.
service() {
    case $init in
    systemd)
        wanted=$root/etc/systemd/system/multi-user.target.wants/smolet.service
        case $1 in
        enable) make_directory /etc/systemd/system/multi-user.target.wants && ln -sf "$(unit_directory)/smolet.service" "$wanted" ;;
        disable) rm -f "$wanted" ;;
        esac
        ! runs || case $1 in
        enable | disable) systemctl daemon-reload ;;
        start) systemctl start smolet.service ;;
        restart) systemctl daemon-reload && systemctl try-restart smolet.service ;;
        stop) [ ! -e "$(unit_directory)/smolet.service" ] || systemctl stop smolet.service ;;
        esac
        ;;
    openrc)
        wanted=$root/etc/runlevels/default/smolet
        case $1 in
        enable) make_directory /etc/runlevels/default && ln -sf /etc/init.d/smolet "$wanted" ;;
        disable) rm -f "$wanted" ;;
        start) ! runs || /etc/init.d/smolet start ;;
        restart | stop) ! runs || ! /etc/init.d/smolet status >/dev/null 2>&1 || /etc/init.d/smolet "$1" ;;
        esac
        ;;
    procd)
        case $1 in
        enable)
            make_directory /etc/rc.d
            ln -sf ../init.d/smolet "$root/etc/rc.d/S95smolet"
            ln -sf ../init.d/smolet "$root/etc/rc.d/K05smolet"
            ;;
        disable) rm -f "$root/etc/rc.d/S95smolet" "$root/etc/rc.d/K05smolet" ;;
        # It is gone where an uninstallation was cut off.
        start | stop) ! runs || [ ! -x /etc/init.d/smolet ] || /etc/init.d/smolet "$1" ;;
        restart) ! runs || ! /etc/init.d/smolet running || /etc/init.d/smolet restart ;;
        esac
        ;;
    esac
}

# The line of the record that begins so.
recorded() { [ ! -e "$root$record" ] || sed -n "s|^$1 ||p" "$root$record"; }

# ---- what is installed

# The archive is what its sums say, and with --key they are what the key's owner has signed.
verify() {
    command -v sha256sum >/dev/null || die "sha256sum is not there, and the archive cannot be verified; install coreutils or busybox"
    [ -e "$from/SHA256SUMS" ] || die "$from is not an unpacked archive of smolet: it has no SHA256SUMS"
    if [ -n "$key" ]; then
        [ -r "$key" ] || die "--key $key: it cannot be read"
        signature=$from/SHA256SUMS.minisig
        [ -e "$signature" ] || die "--key: this archive is not signed; nothing is installed"
        if command -v minisign >/dev/null; then set -- minisign -Vq
        elif command -v signify >/dev/null; then set -- signify -Vq
        elif command -v signify-openbsd >/dev/null; then set -- signify-openbsd -Vq
        elif command -v usign >/dev/null; then set -- usign -Vq
        else die "--key: none of minisign, signify and usign is there to verify the signature; nothing is installed"
        fi
        "$@" -p "$key" -x "$signature" -m "$from/SHA256SUMS" >/dev/null 2>&1 ||
            die "the archive is not signed with the key of $key; nothing is installed"
    fi
    # Each line is to be said OK: a sha256sum that cannot check says nothing.
    if ! (cd "$from" && sha256sum -c SHA256SUMS) >"$scratch/checked" 2>/dev/null ||
        [ "$(grep -c ': OK$' "$scratch/checked")" != "$(grep -c . "$from/SHA256SUMS")" ]; then
        wrong=$(grep -v ': OK$' "$scratch/checked" | tr '\n' ' ') || true
        die "damaged: ${wrong:-sha256sum -c does not check $from/SHA256SUMS }; nothing is installed"
    fi
    (cd "$from" && find . ! -type d ! -path ./SHA256SUMS ! -path ./SHA256SUMS.minisig | sort) >"$scratch/there"
    sed 's/^[0-9a-f]*  //' "$from/SHA256SUMS" | sort >"$scratch/listed"
    cmp -s "$scratch/there" "$scratch/listed" || die "the archive has other files than SHA256SUMS lists; nothing is installed"
    [ -z "$(cd "$from" && find . ! -type d ! -type f)" ] || die "the archive has links or devices, and its sums say nothing of them; nothing is installed"
}

# A static program needs no C library of the machine, but the right processor.
fits() {
    # An image may be for another machine.
    [ -z "$root" ] || return 0
    machine=$(uname -m)
    case $arch in
    amd64) machines='x86_64' ;;
    arm64) machines='aarch64' ;;
    armhf) machines='armv6l armv7l armv8l aarch64' ;;
    armel) machines='armv6l armv7l armv8l aarch64' ;;
    *) die "this archive is for $arch, which is not known here" ;;
    esac
    case " $machines " in
    *" $machine "*) return 0 ;;
    esac
    case $machine in
    x86_64) right=amd64 ;;
    aarch64) right=arm64 ;;
    armv[678]*) right=armhf ;;
    *) die "this archive is for $arch, and this machine is $machine, for which smolet is not built" ;;
    esac
    die "this archive is for $arch, and this machine is $machine: take smolet_${version}_linux_$right.tar.gz"
}

# What dpkg has of a package smolet: nothing where there is none.
package_state() { sed -n '/^Package: smolet$/,/^$/s/^Status: //p' "$root/var/lib/dpkg/status" 2>/dev/null; }

# Two owners of the same files would remove each other's.
is_alone() {
    # A package that is removed and not purged has its settings and its state still, which this one goes on with.
    ! package_state | grep -qv -e ' config-files$' -e ' not-installed$' ||
        die "smolet is installed as a package: apt remove smolet first"
    [ ! -e "$root/usr/lib/opkg/info/smolet.list" ] || die "smolet is installed as a package: opkg remove smolet first"
    ! grep -qsx 'P:smolet' "$root/lib/apk/db/installed" || die "smolet is installed as a package: apk del smolet first"
}

# Makes a directory, and notes which ones were not there.
make_directory() {
    [ ! -d "$root$1" ] || return 0
    make_directory "$(dirname "$1")"
    mkdir "$root$1" || die "$root$1 cannot be made: is the file system read-only? --prefix takes another place"
    echo "directory $1" >>"$scratch/record"
}

# put MODE FILE PATH: at once, whoever uses the old one meanwhile; what is there already is not written again.
put() {
    make_directory "$(dirname "$3")"
    echo "file $3" >>"$scratch/record"
    source=$from/$2
    # Services and drop-ins name the program's place.
    case $2 in
    */smolet | */*.service | */*.conf)
        if [ "$2" != bin/smolet ]; then
            sed "s|/usr/bin/smolet|$prefix/bin/smolet|g" "$source" >"$scratch/relocated"
            source=$scratch/relocated
        fi
        ;;
    esac
    ! cmp -s "$source" "$root$3" || return 0
    changed=yes
    cp "$source" "$root$3.new-smolet" || die "$root$3 cannot be written: is the file system read-only or full?"
    chmod "$1" "$root$3.new-smolet"
    [ "$(id -u)" != 0 ] || chown 0:0 "$root$3.new-smolet"
    mv -f "$root$3.new-smolet" "$root$3"
}

sum() { sha256sum <"$1" | cut -d' ' -f1; }

# keep MODE FILE PATH: what is the owner's to change. As packages do: a changed file stays, with the new one beside it where that has
# changed too; a removed one stays away.
keep() {
    mode=$1
    shift
    new=$(sum "$from/$1") old=$(recorded config | sed -n "s| $2\$||p")
    echo "config $new $2" >>"$scratch/record"
    if [ -e "$root$2" ]; then
        now=$(sum "$root$2")
        [ "$now" != "$new" ] || return 0
        if [ "$now" != "$old" ]; then
            [ "$new" != "$old" ] || return 0
            cp "$from/$1" "$root$2.new"
            echo "install.sh: $2 is as you have changed it; the new one is $2.new"
            return 0
        fi
    elif [ -n "$old" ]; then
        return 0
    fi
    changed=yes
    make_directory "$(dirname "$2")"
    cp "$from/$1" "$root$2.new-smolet"
    chmod "$mode" "$root$2.new-smolet"
    mv -f "$root$2.new-smolet" "$root$2"
}

install_service() {
    case $init in
    systemd)
        put 644 systemd/smolet.service "$(unit_directory)/smolet.service"
        keep 644 default /etc/default/smolet
        ;;
    openrc)
        put 755 openrc/smolet /etc/init.d/smolet
        keep 644 openrc/conf.d /etc/conf.d/smolet
        put 644 openrc/logrotate /etc/logrotate.d/smolet
        ;;
    procd)
        put 755 procd/smolet /etc/init.d/smolet
        put 644 procd/keep /lib/upgrade/keep.d/smolet
        keep 644 default /etc/default/smolet
        ;;
    esac
}

# No documents: some features need them.
install_drop_ins() {
    for path in "$from"/systemd/*.conf; do
        [ ! -e "$path" ] || put 644 "systemd/${path##*/}" "$prefix/share/smolet/systemd/${path##*/}"
    done
}

install_docs() {
    for page in "$from"/man/*; do
        put 644 "man/${page##*/}" "$prefix/share/man/man8/${page##*/}"
    done
    put 644 completions/smolet.bash "$prefix/share/bash-completion/completions/smolet"
    put 644 completions/_smolet "$prefix/share/zsh/site-functions/_smolet"
    put 644 completions/smolet.fish "$prefix/share/fish/vendor_completions.d/smolet.fish"
    (cd "$from/doc" && find . -type f | sort) | sed 's|^\./||' >"$scratch/docs"
    while read -r page; do
        put 644 "doc/$page" "$prefix/share/doc/smolet/$page"
    done <"$scratch/docs"
}

install() {
    from=${from:-$here}
    verify
    arch=$(sed -n 's/^arch=//p' "$from/ABOUT") version=$(sed -n 's/^version=//p' "$from/ABOUT")
    fits
    is_alone
    init=${init:-$(recorded init)} init=${init:-$(find_init)}
    was=$(recorded init) changed=''
    # Before anything is replaced: a file system that is mounted noexec, or a kernel that is too old, is found out here.
    if [ -z "$root" ] && ! cmp -s "$from/bin/smolet" "$prefix/bin/smolet"; then
        make_directory "$prefix/bin"
        cp "$from/bin/smolet" "$prefix/bin/smolet.new-smolet" && chmod 755 "$prefix/bin/smolet.new-smolet" ||
            die "$prefix/bin cannot be written: is the file system read-only or full? --prefix takes another place"
        "$prefix/bin/smolet.new-smolet" --version >/dev/null 2>&1 || {
            rm -f "$prefix/bin/smolet.new-smolet"
            die "the program does not run from $prefix/bin: is it mounted noexec? --prefix takes another place"
        }
    fi
    cat >>"$scratch/record" <<EOF
version $version
init $init
state $(state_directory)
EOF
    put 755 bin/smolet "$prefix/bin/smolet"
    put 755 install.sh "$prefix/lib/smolet/install.sh"
    # A header of staticPodURL may hold a token.
    keep 600 config.yaml /etc/smolet/config.yaml
    own_directories
    put 644 LICENSE "$prefix/share/licenses/smolet/LICENSE"
    put 644 copyright "$prefix/share/licenses/smolet/copyright"
    install_drop_ins
    install_service
    [ -z "$docs" ] || install_docs
    # An upgrade enables and starts nothing that its owner has disabled or stopped.
    if [ "$was" != $init ]; then
        (init=$was && service disable)
        # What a removed package of Debian's leaves in the place of its service.
        [ "$(readlink "$root/etc/systemd/system/smolet.service")" != /dev/null ] || rm -f "$root/etc/systemd/system/smolet.service"
        service enable
    fi
    finish_record
    forget_package
    if [ -z "$starts" ]; then :
    elif [ "$was" != $init ]; then service start || die "smolet is installed, and the service does not start; its log says why"
    elif [ -n "$changed" ]; then service restart || die "smolet is installed, and the service does not start again; its log says why"
    fi
    if [ -n "$starts" ] && [ -n "$changed" ] && [ -z "$root" ] && runs_k3s_agent "$prefix/bin/smolet"; then
        systemctl try-restart k3s-agent.service ||
            die "smolet is installed, and k3s-agent.service, which runs it, does not start again; its log says why"
    fi
    case $init in
    none) what="start it with: $prefix/bin/smolet run --config /etc/smolet/config.yaml" ;;
    *) what="the service is $init's" ;;
    esac
    echo "smolet $version is installed in $root$prefix; $what"
}

own_directories() {
    if [ ! -d "$root/etc/smolet/manifests" ]; then
        make_directory /etc/smolet
        # Manifests may be Secrets.
        mkdir -m 700 "$root/etc/smolet/manifests"
    fi
    if [ ! -d "$root$(state_directory)" ]; then
        make_directory "$(dirname "$(state_directory)")"
        mkdir -m 750 "$root$(state_directory)"
    fi
}

# A package of Debian's that is removed and not purged would take the settings with it, which are this one's now, when it is purged
# some day. It is purged at once, and they are put back; its script leaves service and state to whom they belong (archive_installer).
forget_package() {
    settings='/etc/smolet/config.yaml /etc/default/smolet'
    # Of a run that was cut off.
    for path in $settings; do
        [ ! -e "$root$path.kept-smolet" ] || [ -e "$root$path" ] || mv "$root$path.kept-smolet" "$root$path"
    done
    package_state | grep -q ' config-files$' && command -v dpkg >/dev/null || return 0
    for path in $settings; do
        [ ! -e "$root$path" ] || cp -p "$root$path" "$root$path.kept-smolet"
    done
    dpkg ${root:+"--root=$root"} --purge smolet >/dev/null 2>&1 ||
        echo "install.sh: the removed package smolet cannot be purged; a later dpkg --purge smolet takes /etc/smolet/config.yaml" >&2
    for path in $settings; do
        [ ! -e "$root$path.kept-smolet" ] || mv "$root$path.kept-smolet" "$root$path"
    done
    own_directories
}

# OpenWrt's /var is in memory.
state_directory() { case $init in procd) echo /srv/smolet ;; *) echo /var/lib/smolet ;; esac; }

# What an older version had and this one has not goes.
finish_record() {
    echo "file $record" >>"$scratch/record"
    for path in $(recorded file); do
        grep -qx "file $path" "$scratch/record" || rm -f "$root$path"
    done
    # Directories that it has made are its own still.
    recorded directory | sed 's/^/directory /' >>"$scratch/record"
    sort -u "$scratch/record" >"$scratch/sorted"
    cmp -s "$scratch/sorted" "$root$record" || {
        cp "$scratch/sorted" "$root$record.new-smolet"
        mv -f "$root$record.new-smolet" "$root$record"
    }
    # A power cut from here on finds files whole that the system has not written by itself yet; an image is written by who makes it.
    # Not every busybox syncs files alone.
    [ -z "$changed" ] || [ -n "$root" ] || sed -n "s|^file ||p" "$record" | xargs sync 2>/dev/null || sync || true
}

# ---- what is removed

uninstall() {
    [ -e "$root$record" ] ||
        die "smolet is not installed in $root$prefix from an archive ($root$record is not there); --prefix says where it is"
    # Its paths are those of the file system that it was installed in.
    grep -qx "file $record" "$root$record" ||
        die "$root$record is that of another place, such as an image that is mounted here: name it with --root"
    first=$(before_removal "$prefix/bin/smolet" "$root")
    [ -z "$first" ] ||
        die "k3s-agent.service runs $prefix/bin/smolet in the place of k3s, and nothing is removed; first: $first"
    init=$(recorded init) state=$root$(recorded state)
    cp "$root$record" "$scratch/old"
    service stop || die "the service does not stop; nothing is removed"
    # The record and this file at the end: an uninstallation that was cut off goes on when it is run again.
    for path in $(recorded file); do
        case $path in
        "$record" | "$prefix/lib/smolet/install.sh") ;;
        *) rm -f "$root$path" ;;
        esac
    done
    service disable
    rm -f "$root$record" "$root$prefix/lib/smolet/install.sh"
    if [ -n "$purge" ]; then
        sed -n 's|^config [0-9a-f]* ||p' "$scratch/old" >"$scratch/configs"
        while read -r path; do rm -f "$root$path" "$root$path.new"; done <"$scratch/configs"
        case $init in openrc) rm -f "$root"/var/log/smolet.log "$root"/var/log/smolet.log.* ;; esac
        rmdir "$root/etc/smolet/manifests" "$root/etc/smolet" 2>/dev/null || true
        purge_state
        [ -n "$root" ] || purge_runtime_directory
    fi
    # The deepest first. What is not empty is used by others.
    sed -n 's|^directory ||p' "$scratch/old" | sort -r >"$scratch/directories"
    while read -r path; do rmdir "$root$path" 2>/dev/null || true; done <"$scratch/directories"
    if [ -n "$purge" ]; then echo "smolet is removed; what is left of yours is in /etc/smolet and $state, if anything"
    else echo "smolet is removed; /etc/smolet and $state stay (--purge removes them)"
    fi
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
: >"$scratch/record"
$action
