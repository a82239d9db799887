# shellcheck shell=bash
# servers.sh - real servers for suites whose `servers` names some: web, s3. Sourced by ../fs/lib.sh.
#
#   web   nginx: https with a CA of its own ($SSL_CERT_FILE), the same by http, and like the Hugging Face Hub
#   s3    Swift with its S3 interface, which verifies signatures (root, because of its xattrs); with S3_SERVER=ceph, Ceph's
#         gateway, in the chroot of scripts/chroot.sh
#
# Each is behind a proxy.c, by which a test adds latency and faults. They listen on free ports of 127.0.0.1, keep
# everything in a directory, are started once for a suite, and end with its shell, however that ends.
#
# Environment of the tests:
#   WEBDIR             a directory that web serves
#   WEBS, WEB          its addresses, https://... and http://...
#   WEB_PROXY          its address through a proxy, http://...
#   HUB, HUB_PROXY     for HF_ENDPOINT; `hub` of the suite names repositories, ORG/NAME=FIXTURE; the token is hf_test
#   S3, S3_PROXY       for AWS_ENDPOINT_URL; the keys are in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY

NET=$HERE/../net

# free_ports N: ports that are free at the moment
free_ports() {
  python3 -c 'import socket, sys
all = [socket.socket() for _ in range(int(sys.argv[1]))]
for s in all: s.bind(("127.0.0.1", 0))
print(*(s.getsockname()[1] for s in all))' "$1"
}

# in_back LOG COMMAND...: runs a program in the background, which ends with this shell.
in_back() {
  local log=$1
  shift
  setpriv --pdeathsig SIGKILL "$@" </dev/null >"$log" 2>&1 3<&- &
  server_pids+=("$!")
}

is_answered() { curl -s -o /dev/null --max-time 5 "$1"; }

# start_proxy PORT NAME: starts a proxy for PORT; its own port is then in $proxy_port
start_proxy() {
  local i
  : >"$servers_dir/$2.port"
  in_back "$servers_dir/$2.port" "${CKPTFS%/*}/tests/proxy" "$1" "$servers_dir/$2.log"
  for ((i = 0; i < 200; i++)); do
    proxy_port=$(grep -xm1 '[0-9][0-9]*' "$servers_dir/$2.port") && return # a sanitizer may have printed other lines
    sleep 0.02
  done
  return 1
}

make_ca() {
  (
    cd "$servers_dir" || exit
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=ckptfs-test-ca \
      -keyout ca.key -out ca.pem
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=127.0.0.1 -keyout server.key -out server.csr
    openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -out server.pem \
      -extfile <(echo subjectAltName=IP:127.0.0.1,DNS:localhost)
  ) >"$servers_dir/openssl.log" 2>&1
}

# Like the Hub, it answers a file's address with the identity of the contents and a redirect to another host, which
# refuses a token that is not meant for it.
nginx_conf() {
  cat <<X
daemon off;
master_process off;
user root;
pid $servers_dir/nginx.pid;
error_log $servers_dir/nginx.log;
worker_rlimit_nofile 4096;
events { worker_connections 2000; }
http {
  access_log off;
  default_type application/octet-stream;
  sendfile on;
  keepalive_requests 100000;
  client_body_temp_path $servers_dir/tmp;
  proxy_temp_path $servers_dir/tmp;
  fastcgi_temp_path $servers_dir/tmp;
  uwsgi_temp_path $servers_dir/tmp;
  scgi_temp_path $servers_dir/tmp;
  map_hash_bucket_size 512;
  map_hash_max_size 4096;
  map \$arg_recursive \$how { default .all; "" ""; }
  include $servers_dir/hub.map;
  server {
    listen 127.0.0.1:$web_port;
    listen 127.0.0.1:$webs_port ssl;
    ssl_certificate $servers_dir/server.pem;
    ssl_certificate_key $servers_dir/server.key;
    root $WEBDIR;
    location /whole/ { alias $WEBDIR/; max_ranges 0; }
    location ~ /sparse_update_manifest.json\$ { return 403; } # like a store that does not tell which files exist
    location /locked/ { alias $WEBDIR/; auth_basic locked; auth_basic_user_file $servers_dir/users; }
  }
  server {
    listen 127.0.0.1:$cdn_port;
    root $servers_dir/hub/files;
    location / { if (\$http_authorization) { return 400; } }
  }
  server {
    listen 127.0.0.1:$hub_port;
    root $servers_dir/hub;
    location ~ ^/api/models/ {
      default_type application/json;
      if (\$http_authorization != "Bearer hf_test") { return 401; }
      try_files \$uri\$how.json =404;
    }
    location ~ ^/(?<repo>[^/]+/[^/]+)/resolve/(?<rev>[^/]+)/(?<file>.+)\$ {
      if (\$http_authorization != "Bearer hf_test") { return 401; }
      if (\$hub_etag = "") { return 404; }
      add_header X-Repo-Commit \$hub_commit always;
      add_header X-Linked-Etag "\"\$hub_etag\"" always;
      add_header X-Linked-Size \$hub_size always;
      return 302 http://127.0.0.1:$cdn_port/\$repo/\$hub_commit/\$file;
    }
  }
}
X
}

start_web() {
  read -r web_port webs_port hub_port cdn_port < <(free_ports 4)
  export WEBDIR=$servers_dir/www
  mkdir -p "$WEBDIR" "$servers_dir/hub/files" "$servers_dir/tmp"
  make_ca || return
  printf 'me:{PLAIN}secret-word\n' >"$servers_dir/users"
  local spec
  : >"$servers_dir/hub.map"
  for spec in ${hub:-}; do
    python3 "$NET/publish.py" hub "$servers_dir" "${spec%%=*}" "$(fixture "${spec#*=}")/ckpt" || return
  done
  nginx_conf >"$servers_dir/nginx.conf"
  in_back "$servers_dir/nginx.out" nginx -e "$servers_dir/nginx.log" -c "$servers_dir/nginx.conf"
  start_proxy "$web_port" web || return
  export WEB=http://127.0.0.1:$web_port WEBS=https://127.0.0.1:$webs_port WEB_PROXY=http://127.0.0.1:$proxy_port
  start_proxy "$hub_port" hub || return
  export HUB=http://127.0.0.1:$hub_port HUB_PROXY=http://127.0.0.1:$proxy_port
  export SSL_CERT_FILE=$servers_dir/ca.pem CURL_CA_BUNDLE=$servers_dir/ca.pem
  wait_until is_answered "$WEBS/"
}

# Swift gives up on its own servers after a second or less, and after ten failures calls none of them for a minute; a
# busy machine must not look like that to the tests. An object must be listed when the answer to its PUT comes.
swift_patience=$(printf '%s = 60\n' {node,conn,container_update,connect,pool,io}_timeout; echo error_suppression_limit = 1000000)

swift_server_conf() { # NAME PORT
  cat <<X
[DEFAULT]
$swift_patience
bind_ip = 127.0.0.1
bind_port = $2
workers = 0
user = $(id -un)
swift_dir = $swift_etc
devices = $servers_dir/srv
mount_check = false
log_address =
log_level = WARNING
disable_fallocate = true
[pipeline:main]
pipeline = $1-server
[app:$1-server]
use = egg:swift#$1
X
}

swift_proxy_conf() { # PORT
  local f
  cat <<X
[DEFAULT]
$swift_patience
bind_ip = 127.0.0.1
bind_port = $1
workers = 0
user = $(id -un)
swift_dir = $swift_etc
log_address =
log_level = WARNING
[pipeline:main]
pipeline = catch_errors gatekeeper healthcheck cache listing_formats bulk s3api tempauth slo dlo symlink versioned_writes proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
allow_account_management = true
[filter:cache]
use = egg:swift#memcache
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
allow_multipart_uploads = true
min_segment_size = 5242880
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = testing .admin
[filter:versioned_writes]
use = egg:swift#versioned_writes
allow_object_versioning = true
X
  for f in catch_errors gatekeeper healthcheck listing_formats bulk symlink slo dlo; do
    printf '[filter:%s]\nuse = egg:swift#%s\n' $f $f
  done
}

start_s3() {
  local front
  export S3_SERVER=${S3_SERVER:-swift} AWS_ACCESS_KEY_ID=test:tester AWS_SECRET_ACCESS_KEY=testing AWS_REGION=us-east-1
  "start_$S3_SERVER" || return # sets front
  start_proxy "$front" s3 || return
  export S3=http://127.0.0.1:$front S3_PROXY=http://127.0.0.1:$proxy_port
  wait_until publish_s3 ready
}

start_ceph() {
  local monitor
  read -r monitor front < <(free_ports 2)
  mkdir "$servers_dir/ceph"
  # In a pid namespace, so that all of it ends with its first process.
  in_back "$servers_dir/ceph.log" unshare --pid --fork --kill-child "$HERE/../../scripts/chroot.sh" run \
    --bind "$servers_dir/ceph:/mnt/ceph" --bind "$NET:/mnt/net" -- /mnt/net/ceph.sh /mnt/ceph "$monitor" "$front"
  for _ in {1..4}; do # it takes 20 s on an idle machine
    wait_until test -e "$servers_dir/ceph/ready" && return
  done
  return 1
}

start_swift() {
  local account container object cache name port
  read -r account container object front cache < <(free_ports 5)
  swift_etc=$servers_dir/etc
  mkdir -p "$servers_dir/srv/d1" "$swift_etc"
  printf '[swift-hash]\nswift_hash_path_suffix = ckptfs\nswift_hash_path_prefix = test\n%s\n' \
    $'[storage-policy:0]\nname = gold\ndefault = yes' >"$swift_etc/swift.conf"
  printf '[memcache]\nmemcache_servers = 127.0.0.1:%s\n' "$cache" >"$swift_etc/memcache.conf"
  export SWIFT_DIR=$swift_etc
  # Make the three rings and their configurations with one start of Python instead of nine.
  SWIFT_DIR=$swift_etc /usr/bin/python3 -B - "$swift_etc" "$account" "$container" "$object" <<'X' || return
import sys
from swift.common.ring import RingBuilder
etc = sys.argv[1]
for name, port in zip(("account", "container", "object"), sys.argv[2:]):
    b = RingBuilder(4, 1, 1)
    b.add_dev({"id": 0, "region": 1, "zone": 1, "ip": "127.0.0.1", "port": int(port), "device": "d1", "weight": 100.0,
               "replication_ip": "127.0.0.1", "replication_port": int(port)})
    b.rebalance()
    b.get_ring().save(f"{etc}/{name}.ring.gz")
X
  in_back "$servers_dir/memcached.log" memcached -u "$(id -un)" -l 127.0.0.1 -p "$cache" -m 64
  for name in account container object; do
    port=${!name}
    swift_server_conf $name "$port" >"$swift_etc/$name.conf"
    in_back "$servers_dir/$name.log" /usr/bin/python3 -B "$(command -v swift-$name-server)" "$swift_etc/$name.conf"
  done
  swift_proxy_conf "$front" >"$swift_etc/proxy.conf"
  in_back "$servers_dir/front.log" /usr/bin/python3 -B "$(command -v swift-proxy-server)" "$swift_etc/proxy.conf"
  wait_until is_answered "http://127.0.0.1:$front/healthcheck"
}

# publish_s3 BUCKET[/PREFIX] [DIR...]: makes the bucket and uploads files, by Swift's own interface.
publish_s3() { python3 "$NET/publish.py" s3 "$S3" "$@"; }

# ask WEB_PROXY|HUB_PROXY|S3_PROXY KEY=VALUE...: sets the proxy and its counters; prints the counters. See proxy.c.
ask() {
  local proxy=$1 query
  shift
  query=$(IFS='&' && echo "$*")
  curl -sS --noproxy '*' --max-time 10 "${!proxy}/.proxy${query:+?$query}"
}
# calm PROXY: no latency, no faults
calm() { ask "$1" latency_ms=0 each_bps=0 all_bps=0 fault= from=0 times=0 after=0 >/dev/null; }
# counted PROXY NAME: one of its counters
counted() { ask "$1" | tr ' ' '\n' | sed -n "s/^$2=//p"; }

# reach [proxy]: sets the environment that the addresses need
# shellcheck disable=SC2034 # web is for suites
reach() {
  export AWS_ENDPOINT_URL=${S3:-} HF_ENDPOINT=${HUB:-} HF_TOKEN=hf_test
  web=${WEBS:-}
  if [[ ${1:-} == proxy ]]; then
    AWS_ENDPOINT_URL=${S3_PROXY:-} HF_ENDPOINT=${HUB_PROXY:-} web=${WEB_PROXY:-}
    local proxy
    for proxy in S3_PROXY HUB_PROXY WEB_PROXY; do
      [[ -z ${!proxy:-} ]] || calm $proxy
    done
  fi
}

# The processes of ckptfs-fetch that belong to this test.
fetchers() {
  local p
  for p in /proc/[0-9]*; do
    if [[ $p/exe -ef ${CKPTFS%/*}/ckptfs-fetch ]] && has_word "$p/environ" "T=$T"; then
      echo "${p#/proc/}"
    fi
  done
}
no_fetchers() { [[ -z $(fetchers) ]]; }

start_servers() {
  local name
  servers_dir=$SCRATCH/$SUITE.net
  server_pids=()
  export servers_dir
  rm -rf "$servers_dir"
  mkdir -p "$servers_dir"
  unset HF_TOKEN HF_ENDPOINT AWS_PROFILE AWS_ENDPOINT_URL AWS_ENDPOINT_URL_S3 AWS_SESSION_TOKEN http_proxy https_proxy \
    HTTPS_PROXY all_proxy ALL_PROXY AWS_CA_BUNDLE
  export AWS_EC2_METADATA_DISABLED=true AWS_SHARED_CREDENTIALS_FILE=/nowhere AWS_CONFIG_FILE=/nowhere
  # shellcheck disable=SC2154 # of the suite
  for name in $servers; do
    if ! "start_$name"; then
      report FAILED "the server $name starts"
      tail -n 5 "$servers_dir"/*.log | sed 's/^/        /'
      end_servers
      exit 1
    fi
    report ok "the server $name starts"
  done
}
end_servers() {
  local pid
  for pid in "${server_pids[@]}"; do
    kill -9 "$pid" 2>/dev/null
  done
  wait "${server_pids[@]}" 2>/dev/null
  rm -rf "$servers_dir"
}
