#!/bin/bash
# ceph.sh DIR MONITOR GATEWAY - run a Ceph of one monitor, one OSD in memory and a gateway with S3 and Swift, on these
# ports of 127.0.0.1, in the foreground; DIR/ready appears when it has its user. Runs in the chroot of
# scripts/chroot.sh. The user, the keys and the Swift interface are those that servers.sh has for Swift itself.
set -euo pipefail
dir=$1 conf=$1/ceph.conf
cd "$dir"
mkdir -p mon osd data run
cat >"$conf" <<X
[global]
fsid = 11111111-1111-1111-1111-111111111111
mon_host = v1:127.0.0.1:$2
mon_initial_members = a
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
run_dir = $dir/run
log_file = $dir/\$name.log
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 8
osd_pool_default_pg_autoscale_mode = off
mon_max_pg_per_osd = 1000
mon_allow_pool_size_one = true
osd_crush_chooseleaf_type = 0
osd_objectstore = memstore
memstore_device_bytes = 4294967296
mon_data = $dir/mon
osd_data = $dir/osd
osd_class_dir = $(echo /usr/lib/*/rados-classes)
mon_data_avail_crit = 1
rgw_data = $dir/data
rgw_frontends = beast endpoint=127.0.0.1:$3
rgw_swift_url = http://127.0.0.1:$3
X
monmaptool --create --addv a "[v1:127.0.0.1:$2]" --fsid 11111111-1111-1111-1111-111111111111 monmap
ceph-mon --mkfs -i a -c "$conf" --monmap monmap
ceph-mon -i a -c "$conf" -f &
# A program that asks the monitor before that has its map is refused ("wrong fsid") and ends, so all are restarted.
keep() { while sleep 0.2; do "$@" || true; done; }
try() { until timeout 20 "$@"; do sleep 0.2; done; }
uuid=22222222-2222-2222-2222-222222222222
try ceph -c "$conf" osd create "$uuid"
ceph-osd -i 0 --mkfs -c "$conf" --osd-uuid "$uuid"
try ceph -c "$conf" osd crush add osd.0 1.0 host=h root=default
keep ceph-osd -i 0 -c "$conf" -f &
keep radosgw -c "$conf" -n client.rgw -f &
until (: >"/dev/tcp/127.0.0.1/$3") 2>/dev/null; do sleep 0.2; done
admin() { until radosgw-admin -c "$conf" -n client.rgw "$@"; do sleep 0.2; done; }
admin user create --uid=test --display-name=test --access-key=test:tester --secret=testing
admin subuser create --uid=test --subuser=test:tester --access=full
admin key create --subuser=test:tester --key-type=swift --secret=testing
touch ready
wait
