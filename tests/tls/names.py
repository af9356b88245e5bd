#!/usr/bin/env python3
"""Generates certificate names for Java to print: names.py | java Names.java >names.txt

Leaves out text that is not UTF-8, where we differ from Java on purpose (src/tls/name.rs).
"""

OIDS = {
    "CN": "550403", "SN": "550404", "SERIAL": "550405", "C": "550406", "L": "550407", "ST": "550408",
    "STREET": "550409", "O": "55040a", "OU": "55040b", "TITLE": "55040c", "GIVEN": "55042a",
    "QUALIFIER": "55042e", "EMAIL": "2a864886f70d010901", "DC": "0992268993f22c640119",
    "UID": "0992268993f22c640101", "OWN": "2b06010401823714",
}
UTF8, PRINTABLE, T61, IA5, GENERAL, UNIVERSAL, BMP = 0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1C, 0x1E


def der(tag, content):
    size = len(content)
    if size < 128:
        head = bytes([tag, size])
    else:
        digits = size.to_bytes((size.bit_length() + 7) // 8, "big")
        head = bytes([tag, 0x80 | len(digits)]) + digits
    return head + content


def part(kind, value, tag=UTF8):
    content = value if isinstance(value, bytes) else value.encode()
    return der(0x30, der(0x06, bytes.fromhex(OIDS[kind])) + der(tag, content))


def name(*rdns):
    """Each of `rdns` is a part or a list of parts."""
    sets = (rdn if isinstance(rdn, list) else [rdn] for rdn in rdns)
    return der(0x30, b"".join(der(0x31, b"".join(parts)) for parts in sets))


NAMES = [
    name(),
    name(part("CN", "alice")),
    name(part("C", "DE", PRINTABLE), part("ST", "Bayern"), part("L", "München"), part("O", "Example"),
         part("OU", "Locks"), part("CN", "alice")),
    name(part("DC", "org", IA5), part("DC", "example", IA5), part("UID", "a1"), part("STREET", "1 High St")),
    # Not in RFC 2253's table, so printed as numbers and hex.
    name(part("O", "Example"), part("CN", "alice"), part("EMAIL", "alice@example.org", IA5)),
    name(part("EMAIL", "ä@example.org")),
    name(part("SERIAL", "0042", PRINTABLE), part("TITLE", "Dr"), part("GIVEN", "A"), part("SN", "B"),
         part("QUALIFIER", "C", PRINTABLE)),
    name(part("OWN", "x")),
    # Several parts in one.
    name(part("O", "Example"), [part("CN", "alice"), part("UID", "a1")]),
    name([part("UID", "a1"), part("CN", "alice"), part("OU", "x")]),
    name([part("CN", "alice"), part("EMAIL", "a@b", IA5)], part("OU", "x")),
    # Escaped characters.
    name(part("CN", 'a,b+c"d\\e<f>g;h=i#j')),
    name(part("CN", "#first")),
    name(part("CN", " both ")),
    name(part("CN", "   ")),
    name(part("CN", " ")),
    name(part("CN", "")),
    name(part("CN", "a  b")),
    name(part("CN", "\ra\r")),
    name(part("CN", "\na\n")),
    name(part("CN", "\ta\t")),
    name(part("CN", "a\0b")),
    name(part("CN", "\0")),
    name(part("CN", "a/b'c(d)e.f:g?h*i@j&k_l!m$n%o^p{q}r|s~t`u[v]w")),
    name(part("CN", " ,")),
    name(part("CN", "\\ ")),
    name(part("CN", "\x01\x7f")),
    name(part("CN", "ключ 鍵 🔑")),
    # Other string types, and values that are no strings.
    name(part("CN", "alice", PRINTABLE)),
    name(part("CN", "a*b", PRINTABLE)),
    name(part("CN", "alice", T61)),
    name(part("CN", "alice", IA5)),
    name(part("CN", "alice", GENERAL)),
    name(part("CN", "al".encode("utf-16-be"), BMP)),
    name(part("CN", "al".encode("utf-32-be"), UNIVERSAL)),
    name(part("CN", b"\x05", 0x02)),
    name(part("CN", b"\x00\x41", 0x03)),
    name(part("CN", "20260101000000Z", 0x18)),
    name(part("CN", "alice", 0x12)),
    name(part("CN", "alice", 0x1A)),
    name(part("CN", "x" * 200)),
    name(part("EMAIL", "x" * 200, IA5)),
]

for each in NAMES:
    print(each.hex())
