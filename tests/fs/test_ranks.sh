#!/bin/bash
# ranks/: what each rank of a layout holds.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"

# part FILE OFFSET SIZE: bytes of a file
part() { tail -c +$(($2 + 1)) "$1" | head -c "$3"; }

# A checkpoint c of t, 5 rows of two int64 (16 bytes each), and u, 2x3x4 bytes.
few() { make_dcp --nested c model.t 5x2:int64 2x1 model.u 2x3x4:uint8 1x3x1 >&2; }

# ---- every box, against Python's slices ----

seeds() { printf '%s\n' "${SEED:-$RANDOM}" $((RANDOM + 32768)) $((RANDOM + 65536)); }

cases_any_layout_text_gives_python_s_slices() { seeds; }
test_any_layout_text_gives_python_s_slices() {
  mount_at plain "$(zoo)"
  readers layout "$1" plain/tensors model. | tee mesh
  mount_at m "$(zoo)" -o layout=mesh
  readers ranks m mesh model.
}

cases_any_layout_json_gives_python_s_slices() { seeds; }
test_any_layout_json_gives_python_s_slices() {
  mount_at plain "$(zoo)"
  readers layout-json "$1" plain/tensors model. | tee mesh
  mount_at m "$(zoo)" -o layout=mesh
  readers ranks m mesh model.
}

test_many_ranks_of_a_cast_and_renamed_model() {
  printf '%s\n' 's/^model\.layers\./net.h./' 's/^model/net/' >rules
  printf '%s\n' 'mesh dp=3 pp=1 tp=5' 'h.*.weight tp:0 dp:0' 'lm_head.weight dp:1 tp:0' 'h.*.wide tp:-1' >layout
  mount_at m "$(zoo)" -o rename=rules,weights=net,dtype=fp16,layout=layout
  readers ranks m layout net.
  is float16 "$(getfattr --only-values -n user.ckptfs.dtype m/ranks/00007/tensors/h.10.wide)"
}

# ---- by hand ----

test_uneven_and_empty_parts() {
  few
  printf '%s\n' 'mesh tp=4' 't tp:0' 'u tp:1' >layout
  mount_at m c -o layout=layout
  is "2 2 1 0" "$(for r in 0 1 2 3; do echo $(($(stat -c %s m/ranks/0000$r/tensors/t) / 16)); done | xargs)"
  part c.model.t.bin 32 32 | cmp - m/ranks/00001/tensors/t
  part c.model.t.bin 64 16 | cmp - m/ranks/00002/tensors/t
  is '[0,2]' "$(getfattr --only-values -n user.ckptfs.shape m/ranks/00003/tensors/t)"
  (part c.model.u.bin 4 4 && part c.model.u.bin 16 4) | cmp - m/ranks/00001/tensors/u
  grep -qa "'shape': (0,2)" m/ranks/00003/npy/t.npy
  readers ranks m layout model. >counts
  is "4 ranks, 8 parts, 2 of them empty" "$(cat counts)"
}

# dp:0 tp:0 cuts the rows by dp first (3, 2) and then by tp (2, 1; 1, 1). tp:0 dp:0 gives the same parts, but ranks 1
# and 2 change places.
test_axes_on_one_dimension_nest_as_written() {
  few
  printf '%s\n' 'mesh dp=2 tp=2' 't dp:0 tp:0' >outer
  printf '%s\n' 'mesh dp=2 tp=2' 't tp:0 dp:0' >inner
  mount_at m c -o layout=outer
  mount_at n c -o layout=inner
  cmp <(cat m/ranks/0000{0,1,2,3}/tensors/t) c.model.t.bin
  cmp <(cat n/ranks/0000{0,2,1,3}/tensors/t) c.model.t.bin
  is "32 16 16 16" "$(stat -c %s m/ranks/0*/tensors/t | xargs)"
  is "32 16 16 16" "$(stat -c %s n/ranks/0*/tensors/t | xargs)"
  cmp m/ranks/00000/tensors/u c.model.u.bin # no rule: whole
}

test_first_rule_wins_and_comments_are_none() {
  few
  printf '%b' '# a layout\n\n  mesh\ttp=2   # two\n? tp:-1 # all\r\n* replicate\n' >layout
  mount_at m c -o layout=layout
  is 40 "$(stat -c %s m/ranks/00000/tensors/t)"
  is '[2,3,2]' "$(getfattr --only-values -n user.ckptfs.shape m/ranks/00001/tensors/u)"
  readers ranks m layout model. >/dev/null
  printf '%s\n' 'mesh tp=2' 't replicate' '* tp:0' >layout
  mount_at n c -o layout=layout
  is "80 12" "$(stat -c %s n/ranks/00001/tensors/{t,u} | xargs)"
}

# Ranks 4, 7 and 5 of a mesh of four, which rank_list puts in another order; 7 lacks u, 5 has nothing.
test_json_lists_ranks_and_parameters() {
  few
  cat >layout <<'END'
{ "7": { "t": { "mesh_shape": [2, 2], "tensor_map": [0, 1], "rank_list": [4, 7, 5, 6], "full_shape": [5, 2],
                "uneven_shard_mesh_dims": [1], "alias_name": ["dp", "tp"], "type": "torch.int64" } },
  "4": { "t": { "device_matrix": [2, 2], "tensor_map": [[0, 1], -1], "rank_list": [4, 7, 5, 6],
                "uneven_shard_mesh_dims": null },
         "u": {} },
  "5": {} }
END
  mount_at m c -o layout=layout
  is "00004 00005 00007 model-rank-4-part-0.safetensors model-rank-5-part-0.safetensors model-rank-7-part-0.safetensors" \
    "$(entries m/ranks)"
  is "t u" "$(entries m/ranks/00004/tensors)"
  is "" "$(entries m/ranks/00005/tensors m/ranks/00005/npy)"
  is t "$(ls m/ranks/00007/tensors)"
  [[ ! -e m/ranks/00006 && ! -e m/ranks/00007/tensors/u && ! -e m/ranks/model-rank-6-part-0.safetensors ]]
  # 7 is at (0, 1): rows 3 and 4 of 5 (axis 0 from the right), column 0 (axis 1).
  (part c.model.t.bin 48 8 && part c.model.t.bin 64 8) | cmp - m/ranks/00007/tensors/t
  # 4 is at (0, 0): rows in balanced halves of balanced halves: 3, then 2.
  part c.model.t.bin 0 32 | cmp - m/ranks/00004/tensors/t
  cmp c.model.u.bin m/ranks/00004/tensors/u
  readers ranks m layout model. >/dev/null
}

# uneven_shard_mesh_dims, and the rows of each rank: only the axes that it lists split like torch.chunk.
cases_json_splits_as_its_writer_did() { printf '%s\n' '[] 2 1 1 1' '[0] 2 2 1 0' 'null 2 1 1 1'; }
test_json_splits_as_its_writer_did() {
  few
  for r in 0 1 2 3; do
    echo "{\"$r\": {\"t\": {\"mesh_shape\": [4], \"tensor_map\": [0, -1], \"rank_list\": [0, 1, 2, 3],
      \"uneven_shard_mesh_dims\": $1}}}" >"$r.layout"
  done
  mount_at m c -o layout=.
  is "${*:2}" "$(for r in 0 1 2 3; do echo $(($(stat -c %s m/ranks/0000$r/tensors/t) / 16)); done | xargs)"
  cmp <(cat m/ranks/0*/tensors/t) c.model.t.bin
}

test_a_directory_of_json_files() {
  few
  mkdir d
  echo '{"0": {"t": {}}}' >d/rank_0.layout
  echo '{"1": {"u": {}}}' >d/rank_1.layout
  echo 'not a layout' >d/README
  mount_at m c -o layout=d
  is "t u" "$(entries m/ranks/0000{0,1}/tensors)"
}

# ---- other entries of ranks/ ----

test_links_lead_to_the_ranks() {
  local n
  few
  printf '%s\n' 'mesh tp=11' 'u tp:2' >layout
  mount_at m c -o layout=layout
  for n in 0 3 10; do
    is "$(printf %05d $n)/model.safetensors" "$(readlink m/ranks/model-rank-$n-part-0.safetensors)"
    cmp m/ranks/model-rank-$n-part-0.safetensors "m/ranks/$(printf %05d $n)/model.safetensors"
    ckptfs cat c ranks/model-rank-$n-part-0.safetensors -o layout=layout |
      cmp - m/ranks/model-rank-$n-part-0.safetensors
    ckptfs cat c "ranks/$(printf %05d $n)/npy/u.npy" -o layout=layout | cmp - "m/ranks/$(printf %05d $n)/npy/u.npy"
  done
  is "$(stat -c %s m/ranks/model-rank-0-part-0.safetensors)" 23
  is "11 1" "$(jq -r '"\(.model.ranks) \(.model.hf_files)"' m/.ckptfs/info.json)"
  cp -r m/ranks copy
  [[ -L copy/model-rank-10-part-0.safetensors ]]
  diff -r --no-dereference m/ranks copy
  # Names that look similar do not exist.
  for n in 000000 0 11 00011 model-rank-00-part-0.safetensors model-rank-11-part-0.safetensors model-rank-0-part-1.safetensors \
    99999999999999999999 00000x -0001 model-rank--part-0.safetensors; do
    [[ ! -e m/ranks/$n && ! -L m/ranks/$n ]] || fail "$n exists"
  done
  refused "'ranks' is a directory" ckptfs cat c ranks -o layout=layout
  refused "no such file in the tree" ckptfs cat c ranks/model-rank-0-part-0.safetensors/x -o layout=layout
  refused "no such file in the tree" ckptfs cat c ranks/00000/model.safetensors
}

test_assets_lie_beside_the_ranks() {
  local f
  few
  mkdir d
  # Some of them look like ranks or links at first.
  for f in config.json 0.txt 00000.json 00001_notes 1_pooling.json 123456789012345678901 model-rank-0-notes.txt \
    model-rank-x.txt; do
    echo "$f" >"d/$f"
  done
  echo weights >d/model-rank-9-part-0.safetensors
  printf '%s\n' 'mesh tp=2' 't tp:0' >layout
  mount_at m c -o layout=layout,assets=d
  is "00000 00001 model-rank-0-part-0.safetensors model-rank-1-part-0.safetensors 00000.json 0.txt 00001_notes 1_pooling.json 123456789012345678901 config.json model-rank-0-notes.txt model-rank-x.txt" \
    "$(entries m/ranks)"
  for f in d/*[!s]; do
    cmp "$f" "m/ranks/${f#d/}"
    cmp "$f" "m/hf/${f#d/}"
    ckptfs cat c -o layout=layout,assets=d "ranks/${f#d/}" | cmp - "$f"
  done
  [[ ! -e m/ranks/model-rank-9-part-0.safetensors && ! -e m/hf/model-rank-9-part-0.safetensors ]]
  echo x >d/00001
  refused "'00001' of assets= has a name that is taken" ckptfs cat c ranks/00001/tensors/t -o layout=layout,assets=d
}

test_every_inode_is_its_own() {
  printf '%s\n' 'mesh dp=2 tp=3' 'ids tp:0' >layout
  mkdir d
  echo x >d/config.json
  mount_at m "$(zoo)" -o layout=layout,assets=d
  python3 - m <<'END'
import os, stat, sys
seen = {}
for root, dirs, files in os.walk(sys.argv[1]):
    for e in os.scandir(root):
        st = os.lstat(e.path)
        assert e.inode() == st.st_ino and st.st_ino not in seen, (e.path, seen.get(st.st_ino))
        seen[st.st_ino] = e.path
        assert e.is_dir(follow_symlinks=False) == stat.S_ISDIR(st.st_mode), e.path
        assert e.is_symlink() == stat.S_ISLNK(st.st_mode) == e.name.startswith("model-rank-"), e.path
        if e.is_dir(follow_symlinks=False):
            assert st.st_nlink == 2 + sum(x.is_dir(follow_symlinks=False) for x in os.scandir(e.path))
            assert os.stat(f"{e.path}/..").st_ino == os.stat(root).st_ino, e.path
        elif e.is_symlink():
            assert st.st_size == len(os.readlink(e.path)), e.path
        else:
            with open(e.path, "rb") as f:
                assert len(f.read()) == st.st_size, e.path
assert len(seen) > 6 * 25
END
}

test_incomplete_tensors_are_left_out_of_ranks() {
  cp -r "$(zoo)" c
  rm c/__model.ids_0.distcp
  printf '%s\n' 'mesh tp=2' 'ids tp:0' >layout
  mount_at m c -o layout=layout,allow_missing
  is "${ZOO/ ids/}" "$(readers safetensors m/ranks/00001/model.safetensors m/ranks/00001/tensors | sorted)"
  [[ -e m/ranks/00001/tensors/ids ]]
  try_eio cat m/ranks/00001/tensors/ids
  try_eio cat m/ranks/00000/npy/ids.npy
}

# ---- errors ----

# Each case: the layout file, and words of the message.
cases_bad_layouts_are_errors() {
  cat <<'END'
mesh_tp=2\n\n*_tp:0 layout:3:.'scale'.of.shape.\[\].has.no.dimension.0.to.split
mesh_tp=2\nids_tp:0\nlayers.*_tp:2 layout:3:.'layers.0.norm'.of.shape.\[24\].has.no.dimension.2
mesh_tp=2\nids_tp:-2 layout:2:.'ids'.of.shape.\[11\].has.no.dimension.-2
mesh_tp=2\nids_dp:0 layout:2:.unknown.axis.'dp'
mesh_tp=2\nids_tp layout:2:.'tp'.is.not.AXIS:DIM
mesh_tp=2\nids_tp:x layout:2:.'tp:x'.is.not.AXIS:DIM
mesh_tp=2\nids_tp:64 layout:2:.*at.most.64.dimensions
mesh_tp=2\nids_tp:0_tp:0 layout:2:.axis.'tp'.is.used.twice
mesh_tp=2\nids_tp:0_replicate layout:2:.'replicate'.cannot.be.combined.with.an.axis
mesh_tp=2\nids layout:2:.'ids'.is.followed.by.neither
mesh_tp=2\nmesh_tp=2 layout:2:.a.second.mesh.line
mesh_tp=0 layout:1:.axis.'tp'.has.size.0
mesh_tp layout:1:.'tp'.is.not.NAME=SIZE
mesh_tp=2_tp=2 layout:1:.axis.'tp'.is.named.twice
mesh_a=4096_b=4096 layout:1:.a.mesh.of.more.than
mesh layout:1:.a.mesh.without.axes
#\nids_tp:0 layout:2:.a.rule.before.the.mesh.line
# layout:.no.mesh.line
{} layout:.no.rank.is.listed
{"0":_{"ids":_{}} layout:.byte
{"x":_{}} layout:.'x'.is.not.a.rank
{"0":_{},"0":_{}} layout:.rank.0.is.listed.twice
{"0":_{"ids":_{"mesh_shape":[2],"tensor_map":[0],"rank_list":[0,1]}}} layout:.rank.0:.'ids'.of.shape.\[11\]:.dimension.0.cannot.be.divided.into.2.equal.parts
{"3":_{"ids":_{"mesh_shape":[2],"tensor_map":[0],"rank_list":[0,1]}}} layout:.rank.3:.'ids':.the.rank.is.not.in.rank_list
{"0":_{"ids":_{"mesh_shape":[2],"tensor_map":[1],"rank_list":[0,1]}}} rank.0:.'ids':.tensor_map\[0\].does.not.name.axes
{"0":_{"ids":_{"mesh_shape":[2],"tensor_map":[0,-1],"rank_list":[0,1]}}} rank.0:.'ids'.of.shape.\[11\]:.tensor_map.has.2.entries
{"0":_{"ids":_{"full_shape":[12]}}} rank.0:.'ids'.of.shape.\[11\]:.full_shape.is.\[12\]
{"0":_{"ids":_{"mesh_shape":[2],"device_matrix":[3],"tensor_map":[0],"rank_list":[0,1]}}} mesh_shape.and.device_matrix.differ
END
}
test_bad_layouts_are_errors() {
  mkdir m
  printf '%b' "${1//_/ }" | sed 's/mesh shape/mesh_shape/g; s/device matrix/device_matrix/g; s/tensor map/tensor_map/g
    s/rank list/rank_list/g; s/full shape/full_shape/g' >layout
  refused "$2" ckptfs mount "$(zoo)" m -o layout=layout
  unmounted m
}

test_layouts_that_cannot_be_read_are_errors() {
  mkdir empty m
  refused "option 'layout':.*'absent': no such file" ckptfs mount "$(zoo)" m -o layout=absent
  refused "option 'layout': empty: no \*\.layout file in it" ckptfs info "$(zoo)" -o layout=empty
  refused "option 'layout'.*neither a file nor a directory" ckptfs info "$(zoo)" -o layout=/dev/null
  echo '{"0": {}}' | tee empty/a.layout >empty/b.layout
  refused "rank 0 is listed in 'empty/a.layout' and in 'empty/b.layout'" ckptfs info "$(zoo)" -o layout=empty
  # ranks/ needs unique names.
  make_dcp --flat c model.module.a 1x2 1x1 model.a 1x2 1x1
  echo 'mesh tp=2' >layout
  refused "'model.a' and 'model.module.a' would both be called 'model.a'" ckptfs info c -o layout=layout
}

test_what_no_tensor_needs_is_a_warning() {
  mkdir m
  printf '%s\n' 'mesh tp=2' 'idz tp:0' 'ids tp:0' '*.bias tp:0' '* replicate' '* tp:0' >layout
  cat >wanted <<'END'
ckptfs: warning: layout:2: no tensor for 'idz'
ckptfs: warning: layout:4: no tensor for '*.bias'
END
  status_of 0 ckptfs mount -q "$(zoo)" m -o layout=layout
  diff wanted err
  is_mounted m
  echo '{"0": {"ids": {}, "idz": {}}}' >layout
  echo "ckptfs: warning: layout: no tensor 'idz' in the checkpoint" >wanted
  status_of 0 ckptfs info "$(zoo)" -o layout=layout
  diff wanted err
}

run_suite "$@"
