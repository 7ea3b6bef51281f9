# The images of the tests, made from a static busybox; runtime.sh has this file's functions and sets DIR and `here`.
#
#   smolet.test/pause:1          the sandbox image
#   smolet.test/busybox:1, :2    busybox; /etc/version tells them apart
#   smolet.test/version:1, :2    prints "version N", then waits for SIGTERM
#
# and stand-ins for those that examples/gateway names: small scripts (stand-ins/) in the place of the real programs. They
# look at what they are given as the real ones do, and say what they found.

readonly TEST_IMAGES="smolet.test/pause:1 smolet.test/busybox:1 smolet.test/busybox:2 smolet.test/version:1 smolet.test/version:2"

# A name and what the image's configuration says of its program.
readonly GATEWAY_IMAGES='docker.io/library/busybox:1.36 "Cmd":["sh"]
docker.io/library/eclipse-mosquitto:2 "Cmd":["/usr/sbin/mosquitto","-c","/mosquitto/config/mosquitto.conf"]
docker.io/prom/node-exporter@sha256:4032c6d5bfd752342c3e631c2f1de93ba6b86c41db6b167b9a35372c139e7706 "User":"nobody","Entrypoint":["/bin/node_exporter"]
docker.io/prom/node-exporter:v1.8.2 "User":"nobody","Entrypoint":["/bin/node_exporter"]
docker.io/volkszaehler/mbmd:latest "Entrypoint":["/usr/local/bin/mbmd"]
docker.io/fluent/fluent-bit:3.1.9 "Entrypoint":["/fluent-bit/bin/fluent-bit"]
docker.io/keinos/sqlite3:3.46.1 "Cmd":["sqlite3"]
docker.io/datasetteproject/datasette:0.64.8 "Cmd":["datasette"]
docker.io/nodered/node-red:4.0.9 "WorkingDir":"/usr/src/node-red","Entrypoint":["./entrypoint.sh"]
docker.io/library/nginx:1.27-alpine "Entrypoint":["/docker-entrypoint.sh"],"Cmd":["nginx","-g","daemon off;"]
docker.io/library/telegraf:1.31-alpine "Cmd":["telegraf"]
docker.io/curlimages/curl:8.10.1 "Cmd":["curl"]
docker.io/prom/prometheus:v2.55.1 "User":"nobody","Entrypoint":["/bin/prometheus"]'

layer() { # layer ROOTFS-DIR: adds a layer to the archive; prints its digest
    local tmp=$DIR/images/layer.tar digest
    tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$1" -cf "$tmp" .
    digest=$(sha256sum <"$tmp" | cut -d' ' -f1)
    mv "$tmp" "$DIR/images/out/$digest.tar"
    echo "$digest"
}

image() { # image NAME CONFIG LAYER...: adds an image to the archive's manifest
    local name=$1 config=$2 arch diff='' files='' digest
    shift 2
    case $(uname -m) in
    x86_64) arch=amd64 ;;
    aarch64) arch=arm64 ;;
    *) arch=arm ;;
    esac
    for digest; do
        diff="$diff${diff:+,}\"sha256:$digest\""
        files="$files${files:+,}\"$digest.tar\""
    done
    config=$(printf '{"architecture":"%s","os":"linux","config":{%s},"rootfs":{"type":"layers","diff_ids":[%s]}}' \
        "$arch" "$config" "$diff")
    digest=$(printf '%s' "$config" | sha256sum | cut -d' ' -f1)
    printf '%s' "$config" >"$DIR/images/out/$digest.json"
    printf '%s{"Config":"%s.json","RepoTags":["%s"],"Layers":[%s]}' \
        "${MANIFEST:+,}" "$digest" "$name" "$files" >>"$DIR/images/manifest"
    MANIFEST=1
}

# archive FUNCTION FILE: the images that the function adds, as one docker archive; the function is given busybox's layer.
archive() {
    local busybox fs=$DIR/images/fs applet
    busybox=$(command -v busybox)
    rm -rf "$DIR/images"
    mkdir -p "$DIR/images/out" "$fs"/{bin,etc,tmp,run,proc,sys,dev,www}
    chmod 1777 "$fs/tmp"
    cp "$busybox" "$fs/bin/busybox"
    for applet in $("$busybox" --list); do
        [ "$applet" = busybox ] || ln -s busybox "$fs/bin/$applet"
    done
    printf 'root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n' >"$fs/etc/passwd"
    printf 'root:x:0:\nnogroup:x:65534:\n' >"$fs/etc/group"
    # Reading it sleeps without a child process: opened for reading and writing, it never ends.
    mkfifo -m 666 "$fs/run/forever"
    # PID 1 gets only the signals that it asked for.
    cat >"$fs/bin/forever" <<'E'
#!/bin/sh
trap 'exit 0' TERM INT
while :; do read -r _ <>/run/forever; done
E
    cat >"$fs/bin/version" <<'E'
#!/bin/sh
echo "version $(cat /etc/version)"
exec forever
E
    chmod 755 "$fs/bin/forever" "$fs/bin/version"
    MANIFEST=
    "$1" "$(layer "$fs")"
    echo "[$(cat "$DIR/images/manifest")]" >"$DIR/images/out/manifest.json"
    tar -C "$DIR/images/out" -cf "$2" .
    rm -rf "$DIR/images"
}

test_images() { # test_images LAYER
    local base=$1 fs=$DIR/images/fs path='"Env":["PATH=/bin"]' version n
    image smolet.test/pause:1 "$path,\"Cmd\":[\"/bin/forever\"]" "$base"
    for n in 1 2; do
        rm -rf "$fs"
        mkdir -p "$fs/etc" "$fs/www"
        echo $n >"$fs/etc/version"
        echo "smolet test page $n" >"$fs/www/index.html"
        version=$(layer "$fs")
        image smolet.test/busybox:$n "$path,\"Cmd\":[\"sh\"]" "$base" "$version"
        image smolet.test/version:$n "$path,\"Cmd\":[\"/bin/version\"]" "$base" "$version"
    done
}

gateway_images() { # gateway_images LAYER
    local path='"Env":["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]' programs name config
    programs=$(layer "$here/stand-ins")
    while read -r name config; do
        image "$name" "$path,$config" "$1" "$programs"
    done <<<"$GATEWAY_IMAGES"
}
