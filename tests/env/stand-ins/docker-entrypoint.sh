#!/bin/sh
# The start of nginx: puts the variables in, says what it may do, serves the site.
set -eu
conf=/etc/nginx/conf.d/default.conf
# Those of the filter, of them the two there are.
[ "$NGINX_ENVSUBST_FILTER" = ^API_ ]
sed "s/\${API_HOST}/$API_HOST/; s/\${API_TOKEN}/$API_TOKEN/" /etc/nginx/templates/default.conf.template >$conf
: >/run/nginx.pid
: >/tmp/new
: >/var/cache/nginx/new
if (: >/new) 2>/dev/null; then echo "/new can be written"; exit 1; fi
grep -E '^(CapBnd|CapEff|NoNewPrivs):' /proc/self/status
grep -E ' /(tmp|run|etc/nginx/conf.d|var/cache/nginx) ' /proc/mounts
# Of the token only its length.
echo "proxies to $(sed -n 's/ *proxy_pass \(.*\);/\1/p' $conf)"
echo "Authorization: $(sed -n 's/.*Authorization "\(.*\)".*/\1/p' $conf | tr -d '\n' | wc -c) characters"
exec stays httpd -f -p "$(sed -n 's/^ *listen \(.*\);/\1/p' $conf)" -h "$(sed -n 's/^ *root \(.*\);/\1/p' $conf)"
