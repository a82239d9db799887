#!/usr/bin/env python3
"""Turn a good chunk index into a malicious one, in place:

    planted.py KIND [WHICH] INDEX

WHICH is a table, an index of SQLite's, or "schema" where the kind is about a B-tree, and a seed of "shuffled".
`planted.py` alone lists the other kinds, with their B-trees, one on a line.
"""

import os
import random
import shutil
import sqlite3
import struct
import sys

TREES = "checkpoint metadata_file directory chunkmap sqlite_autoindex_metadata_file_1 schema".split()
MANY = 2700  # cells in a page


class File:
    """The pages of an index; page 1 is the first."""

    def __init__(self, path):
        self.path = path
        db = sqlite3.connect(path)
        self.roots = dict(db.execute("SELECT name, rootpage FROM sqlite_master WHERE rootpage"))
        db.close()
        self.roots["schema"], self.least = 1, 0
        with open(path, "rb") as f:
            self.bytes = bytearray(f.read())
        (self.size,) = struct.unpack(">H", self.bytes[16:18])

    def page(self, n):
        return self.bytes[(n - 1) * self.size : n * self.size]

    def put(self, n, page):
        """Replace a page, or append one."""
        assert len(page) == self.size
        self.bytes[(n - 1) * self.size : n * self.size] = page

    def count(self):
        return len(self.bytes) // self.size

    def save(self):
        """Write the file, with a hole for pages that are claimed but were not put."""
        n = max(self.count(), self.least)
        self.bytes[28:32] = struct.pack(">I", n)
        with open(self.path, "wb") as f:
            f.write(self.bytes)
            f.truncate(n * self.size)


def varint(p):
    """The number at the beginning of p, and how many bytes it takes."""
    v = 0
    for i in range(8):
        v = v << 7 | p[i] & 0x7F
        if not p[i] & 0x80:
            return v, i + 1
    return v << 8 | p[8], 9


def put_varint(v):
    out = [v & 0x7F]
    while v := v >> 7:
        out.append(v & 0x7F | 0x80)
    return bytes(reversed(out))


def split(page, head):
    """(kind, pointers to cells) of a page whose header is at `head`."""
    n = struct.unpack(">H", page[head + 3 : head + 5])[0]
    at = head + (12 if page[head] < 8 else 8)
    return page[head], list(struct.unpack(">%dH" % n, page[at : at + 2 * n]))


def inner(f, page, kind, child, cell):
    """An inner page whose cells all lead to the same child. Page 1 keeps the file's header."""
    head = 100 if page == 1 else 0
    out = bytearray(f.size)
    out[:head] = f.page(page)[:head]
    cell = struct.pack(">I", child) + cell
    at = f.size - len(cell) - 8
    out[at : at + len(cell)] = cell
    out[head : head + 12] = struct.pack(">BHHHBI", kind, 0, MANY, at, 0, child)
    for i in range(MANY):
        out[head + 12 + 2 * i : head + 14 + 2 * i] = struct.pack(">H", at)
    return out


def first_cell(f, root):
    """What an inner page repeats of the first cell of a leaf: the row's number; for an index, the whole cell."""
    page = f.page(root)
    kind, cells = split(page, 100 if root == 1 else 0)
    _, a = varint(page[cells[0] :])
    n, b = varint(page[cells[0] + a :])
    if kind == 13:
        return 5, page[cells[0] + a : cells[0] + a + b]
    assert kind == 10, kind
    return 2, page[cells[0] : cells[0] + a + varint(page[cells[0] :])[0]]


def bomb(f, which):
    """A tree with 2700^3 times the rows that it had."""
    root, n = f.roots[which], f.count()
    kind, cell = first_cell(f, root)
    leaf = f.page(root)
    if root == 1:  # without the file's header, but with the cells in their places
        end = 108 + 2 * len(split(leaf, 100)[1])
        leaf = leaf[100:end] + bytes(100) + leaf[end:]
    f.put(root, inner(f, root, kind, n + 1, cell))
    f.put(n + 1, inner(f, n + 1, kind, n + 2, cell))
    f.put(n + 2, inner(f, n + 2, kind, n + 3, cell))
    f.put(n + 3, leaf)


def itself(f, which):
    """A page that leads to itself."""
    root = f.roots[which]
    kind, cell = first_cell(f, root)
    f.put(root, inner(f, root, kind, root, cell))


def chain(f, which):
    """The first row claims 900 MB, on an overflow page that is its own successor. The file is as large, but most of it
    is a hole."""
    root, n = f.roots[which], f.count()
    head = 100 if root == 1 else 0
    page = f.page(root)
    kind, cells = split(page, head)
    assert kind == 13
    length = 900 << 20
    usable = f.size
    least = (usable - 12) * 32 // 255 - 23
    here = least + (length - least) % (usable - 4)
    if here > usable - 35:
        here = least
    _, a = varint(page[cells[0] :])
    _, b = varint(page[cells[0] + a :])
    number = page[cells[0] + a : cells[0] + a + b]
    # A record of NULL and one value that takes all the rest.
    for width in (4, 5):
        value = put_varint((length - width - 2) * 2 + 12)
        if 2 + len(value) == width + 2:
            break
    record = bytes([2 + len(value), 0]) + value
    cell = put_varint(length) + number + record
    cell += bytes(here - len(record)) + struct.pack(">I", n + 1)
    at = usable - len(cell)
    out = bytearray(usable)
    out[:head] = page[:head]
    out[at:] = cell
    out[head : head + 8] = struct.pack(">BHHHB", 13, 0, len(cells), at, 0)
    for i in range(len(cells)):
        out[head + 8 + 2 * i : head + 10 + 2 * i] = struct.pack(">H", at)
    f.put(root, out)
    f.put(n + 1, struct.pack(">I", n + 1) + bytes(usable - 4))
    f.least = length // usable + 10


def statements(*sql):
    def change(path):
        db = sqlite3.connect(path)
        db.execute("PRAGMA writable_schema=ON")
        for s in sql:
            db.execute(s)
        db.commit()
        db.close()

    return change


def sequence(table, columns):
    """Replace a table by a view with endless rows."""
    return statements(
        f"DROP TABLE {table}",
        f"CREATE VIEW {table} AS WITH RECURSIVE r(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM r)"
        f" SELECT {columns} FROM r",
    )


def replaced(table, sql):
    """The schema's text, which is compared, stays the same; but the table's entry leads elsewhere."""
    return statements(f"UPDATE sqlite_master SET {sql} WHERE name = '{table}'")


def many_tables(path):
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("BEGIN")
    for i in range(10000):
        db.execute(f"CREATE TABLE t{i}(a)")
    db.execute("COMMIT")
    db.close()


def log_beside(path):
    """An index in WAL mode, with its changes in a log beside it."""
    other = path + ".other"
    shutil.copy(path, other)
    db = sqlite3.connect(other)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA wal_autocheckpoint=0")
    db.execute("UPDATE directory SET data = zeroblob(100000000)")
    db.commit()
    for suffix in ("", "-wal", "-shm"):
        shutil.copy(other + suffix, path + suffix)
    db.close()
    os.remove(other)


def journal_beside(path):
    """A journal of an unfinished transaction, which SQLite would roll back in the file."""
    other = path + ".other"
    shutil.copy(path, other)
    db = sqlite3.connect(other, isolation_level=None)
    db.execute("PRAGMA journal_mode=DELETE")
    db.execute("PRAGMA cache_size=1")
    db.execute("UPDATE directory SET data = x'00'")
    db.execute("BEGIN")
    db.execute("UPDATE directory SET data = zeroblob(100000)")
    shutil.copy(other + "-journal", path + "-journal")
    db.execute("ROLLBACK")
    db.close()
    os.remove(other)


def hole(path):
    """A file of 100 GB that is a hole except for the first page."""
    os.truncate(path, 16384)
    os.truncate(path, 100 << 30)


def shuffled(f, seed):
    """Each page except the first is replaced by a random one."""
    pages = [bytes(f.page(i)) for i in range(1, f.count() + 1)]
    rng = random.Random(int(seed))
    for i in range(2, f.count() + 1):
        f.put(i, rng.choice(pages))


def schema_text(path):
    """The right text for a table, followed by a comment of 100 MB."""
    statements(
        "UPDATE sqlite_master SET sql = sql || ' -- ' || hex(zeroblob(50000000)) WHERE name = 'directory'"
    )(path)


def schema_columns(path):
    """Statements as long as a page allows."""
    many = ",".join("c%x" % i for i in range(700))
    statements(*(
        f"UPDATE sqlite_master SET sql = 'CREATE TABLE {name}({many})' WHERE name = '{name}'"
        for name in ("source", "encoding", "tensor", "object")
    ))(path)


KINDS = {
    "log_beside": log_beside,
    "journal_beside": journal_beside,
    "hole": hole,
    "many_tables": many_tables,
    "schema_text": schema_text,
    "schema_columns": schema_columns,
    "endless_directory": sequence("directory", "id, x'' AS data"),
    "endless_metadata": sequence(
        "metadata_file", "'' || id AS name, 1 AS size, '' AS id, '' AS xxh128"
    ),
    "endless_chunkmap": sequence("chunkmap", "id, '' AS chunks"),
    "trigger": statements("CREATE TRIGGER t AFTER INSERT ON tensor BEGIN SELECT randomblob(900000000); END"),
    "generated": statements(
        "DROP TABLE directory",
        "CREATE TABLE directory(id INTEGER PRIMARY KEY, data BLOB AS (zeroblob(900000000)))",
        "INSERT INTO directory(id) VALUES (1), (2)",
    ),
    "expression": statements("CREATE INDEX i ON tensor(length(hex(fqn)))"),
    "virtual": statements("DROP TABLE encoding", "CREATE VIRTUAL TABLE encoding USING fts5(a)"),
    "root_0": replaced("directory", "rootpage = 0"),
    "root_1": replaced("directory", "rootpage = 1"),
    "root_far": replaced("directory", "rootpage = 2147483647"),
    "root_other": replaced("directory", "rootpage = (SELECT rootpage FROM sqlite_master WHERE name = 'object')"),
    "root_index": replaced(
        "chunkmap", "rootpage = (SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_tensor_1')"
    ),
    "other_name": replaced("directory", "name = 'x', tbl_name = 'y', type = 'index'"),
}
OF_TREES = {"bomb": bomb, "itself": itself, "chain": chain}
OF_PAGES = OF_TREES | {"shuffled": shuffled}


def main():
    if len(sys.argv) == 1:
        for kind in OF_TREES:
            print(*(f"{kind} {t}" for t in TREES if kind != "chain" or "auto" not in t), sep="\n")
        print(*KINDS, sep="\n")
    elif sys.argv[1] in OF_PAGES:
        f = File(sys.argv[3])
        OF_PAGES[sys.argv[1]](f, sys.argv[2])
        f.save()
    else:
        KINDS[sys.argv[1]](sys.argv[-1])


main()
