#!/usr/bin/env bash
# Tests the README's commands on a bare Debian: makes one with debootstrap, unpacks the last commit in it and runs the commands
# there, one after the other, until one fails. It needs root, debootstrap and a network, so it is not part of `make test`.
#
#   tests/bare_debian.sh                                   the first-time user: the README's first commands, including training
#   tests/bare_debian.sh 'make test'                       the build machine: root, with only python3, make and git
#   AS=nobody tests/bare_debian.sh 'make setup'            a user who may not install packages, and gets the name of the missing one
#
# BARE_DEBIAN is the working folder (the Debian base is kept there for the next time). PIP_* variables are passed on; BIND lists
# files and folders of this machine that are also needed inside, such as a folder of wheels named by PIP_FIND_LINKS.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=${BARE_DEBIAN:-/var/tmp/bare_debian}
base=$folder/base
root=$folder/root
user=${AS:-root}
if [ $# = 0 ]; then
    mapfile -t commands < <(sed -n '/^```sh$/,/^```$/p;/^```$/q' README.md | grep -v '^```' |
        sed 's/^sudo apt-get install/apt-get update -qq \&\& apt-get install -y -qq/')
    set -- "${commands[@]}"
fi

if [ ! -e "$base.whole" ]; then
    rm -rf "$base"
    mkdir -p "$folder"
    debootstrap --variant=minbase --include=python3,make,git,ca-certificates "${SUITE:-bookworm}" "$base"
    touch "$base.whole"
fi
rm -rf --one-file-system "$root"
cp -a --reflink=auto "$base" "$root"
mkdir -p "$root/home/keima/checkout"
git archive HEAD | tar -x -C "$root/home/keima/checkout"
chroot "$root" chown -R "$user" /home/keima

# The rest runs in its own mount and process namespaces, so that nothing outlives this script.
passed=()
for variable in ${!PIP_@}; do
    passed+=("$variable=${!variable}")
done
export root user BIND=${BIND:-}
unshare --mount --pid --fork --kill-child bash -euo pipefail -c '
mount --bind "$root" "$root" # a mount of its own, so that tests can make namespaces in it
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
mount -t proc proc "$root/proc"
cp /etc/resolv.conf "$root/etc/resolv.conf"
echo "127.0.0.1 localhost" >"$root/etc/hosts" # which the installer of Debian writes
for path in $BIND; do
    if [ -d "$path" ]; then mkdir -p "$root$path"; else install -D /dev/null "$root$path"; fi
    mount --bind -o ro "$path" "$root$path"
done
count=$1; shift
passed=("${@:1:count}"); shift "$count"
for command in "$@"; do
    echo "bare Debian \$ $command"
    started=$SECONDS
    chroot --userspec="$user" "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/home/keima LANG=C.UTF-8 "${passed[@]}" \
        sh -c "cd ~/checkout && $command"
    echo "bare Debian: took $((SECONDS - started)) s"
done
' bash "${#passed[@]}" "${passed[@]}" "$@"
