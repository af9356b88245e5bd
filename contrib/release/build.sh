#!/bin/bash
# Builds a release for this machine's processor, into target/dist. The workflow of a tag runs these steps, and nothing else.
#
#   contrib/release/build.sh binary [FILE]   the command as one static file
#   contrib/release/build.sh files           manual pages, completions and licences, in target/files
#   contrib/release/build.sh archive         all of these as .tar.gz
#   contrib/release/build.sh deb             a Debian package, after notices  (needs cargo-deb)
#   contrib/release/build.sh sbom            its dependencies, in CycloneDX   (needs cargo-cyclonedx)
#   contrib/release/build.sh notices         their licences                   (needs cargo-about)
#   contrib/release/build.sh sums            SHA256SUMS of target/dist
#   contrib/release/build.sh check           fails unless the tag GITHUB_REF_NAME is the version, which the changelog names
#   contrib/release/build.sh tools           installs the cargo commands that are needed, in the versions of here
set -euo pipefail
cd "$(dirname "$0")/../.."

triple=$(uname -m)-unknown-linux-gnu
built=${CARGO_TARGET_DIR:-target}/$triple/release/lockkeeper
dist=target/dist
files=target/files
notices=target/NOTICES.html
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
# The commit's time, so that the same sources give the same archive.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
export SOURCE_DATE_EPOCH

need() {
    if ! cargo "$1" --version >/dev/null 2>&1; then
        echo "cargo $1 is missing: contrib/release/build.sh tools" >&2
        return 1
    fi
}

# glibc linked in, and not musl: musl's allocator is slow with several threads. Without `linux_getrandom` the crate looks the
# function up in a library that is not there, and falls back to /dev/urandom, which an empty root has not.
binary() {
    local flags='["-Ctarget-feature=+crt-static", "--cfg", "getrandom_backend=\"linux_getrandom\""]'
    # With --target, so that the flags are not those of build scripts and macros.
    cargo build --release --locked -p lockkeeper-cli --target "$triple" --config "target.$triple.rustflags=$flags"
    if ldd "$built" 2>&1 | grep -q '=>'; then
        echo "$built is not static" >&2
        return 1
    fi
    if [ $# -gt 0 ]; then install -D -m 0755 "$built" "$1"; fi
    ls -l "$built"
}

files() {
    rm -rf "$files"
    mkdir -p "$files/man" "$files/completions"
    "$built" man --dir "$files/man"
    gzip -n -9 "$files"/man/*.1
    local shell
    for shell in bash zsh fish; do "$built" completions "$shell" >"$files/completions/lockkeeper.$shell"; done
    cp LICENSE-MIT LICENSE-APACHE README.md CHANGELOG.md "$files"
    if [ -e "$notices" ]; then cp "$notices" "$files"; fi
}

archive() {
    local name=lockkeeper-$version-$triple
    mkdir -p "$dist/$name"
    cp "$built" "$dist/$name"
    cp -r "$files"/. contrib/systemd/lockkeeper.service "$dist/$name"
    tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" \
        -C "$dist" -c "$name" | gzip -n -9 >"$dist/$name.tar.gz"
    rm -r "${dist:?}/$name"
    ls -l "$dist/$name.tar.gz"
}

deb() {
    need deb
    mkdir -p "$dist"
    # The binary is stripped by its profile.
    cargo deb -p lockkeeper-cli --no-build --no-strip --target "$triple" --output "$dist/"
    ls -l "$dist"/*.deb
}

sbom() {
    need cyclonedx
    local name=lockkeeper-$version-$triple.cdx
    mkdir -p "$dist"
    cargo cyclonedx --manifest-path cli/Cargo.toml --format json --spec-version 1.5 --no-build-deps --target "$triple" --override-filename "$name"
    mv "cli/$name.json" "$dist"
    # One for each member is written, and the others are not released.
    find . -name "$name.json" -not -path "./target/*" -delete
    ls -l "$dist/$name.json"
}

notices() {
    need about
    cargo about generate --offline --manifest-path cli/Cargo.toml contrib/notices.hbs >"$notices"
}

sums() {
    cd "$dist"
    find . -maxdepth 1 -type f ! -name 'SHA256SUMS*' -printf '%P\n' | sort | xargs sha256sum >"SHA256SUMS-$triple"
    cat "SHA256SUMS-$triple"
}

check() {
    if [ "${GITHUB_REF_NAME:-}" != "v$version" ]; then
        echo "the tag is ${GITHUB_REF_NAME:-missing}, and the version $version" >&2
        return 1
    fi
    if ! grep -q "^## .*$version" CHANGELOG.md; then
        echo "CHANGELOG.md has no section of $version" >&2
        return 1
    fi
}

tools() {
    cargo install --locked cargo-deb@3.8.0 cargo-cyclonedx@0.5.9
    cargo install --locked cargo-about@0.9.3 --features cli
}

case ${1:-} in
binary | files | archive | deb | sbom | notices | sums | check | tools) "$@" ;;
*) sed -n '2,/^set /{/^#/p}' "$0" >&2 && exit 2 ;;
esac
