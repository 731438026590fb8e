# What the scripts have in common that install servers: read by them with `.`, not to be run.
#
# A script that reads it sets `wanted`, the name of what it installs, and says how each package
# manager does that by functions: with_apt, with_dnf, with_apk and with_brew. What people are to do
# where there is none of these, it tells by by_hand.

# Tells people something, and who says it.
say() {
    printf '%s: %s\n' "${0##*/}" "$1" >&2
}

# Runs a command as root.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null 2>&1; then
        sudo "$@"
    else
        say "$wanted is missing; installing it needs root, and there is no sudo. Run as root: $*"
        exit 1
    fi
}

# Installs packages of Debian's or Ubuntu's, and only what they need.
apt_install() {
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install --yes --no-install-recommends "$@"
}

# Installs what is wanted by the package manager that is there; ends the script where there is none.
install_wanted() {
    say "$wanted is missing: installing it"
    if command -v apt-get >/dev/null 2>&1; then
        as_root apt-get update
        with_apt
    elif command -v dnf >/dev/null 2>&1; then
        with_dnf
    elif command -v apk >/dev/null 2>&1; then
        with_apk
    elif command -v brew >/dev/null 2>&1; then
        with_brew
    else
        say "cannot install $wanted here: no apt-get, dnf, apk or brew."
        by_hand
        exit 1
    fi
    hash -r
}
