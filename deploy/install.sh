# Common functions of the install-* scripts, which source this file and take no arguments. Not to be run
# itself.
#
# Each script sets `wanted`, the name of the software, and defines one function for each package
# manager: with_apt, with_dnf, with_apk and with_brew. Its function print_instructions says how to
# install the software without any of these. A script for Debian alone, which has made sure of it,
# defines only with_apt.
. "$(dirname "$0")/usage.sh"
take_no_arguments "$@"

# Logs a message to stderr, with the name of the script.
log() {
    printf '%s: %s\n' "${0##*/}" "$1" >&2
}

# Runs a command as root.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null 2>&1; then
        sudo "$@"
    else
        log "$wanted is missing; installing it needs root, and there is no sudo. Run as root: $*"
        exit 1
    fi
}

# Installs packages of Debian or Ubuntu, without recommended ones.
apt_install() {
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install --yes --no-install-recommends "$@"
}

# Installs a package of Debian or Ubuntu that starts a server on hosts with systemd, unless its unit is
# masked: the checks start servers of their own.
apt_install_without_server() {
    if [ ! -d /run/systemd/system ]; then
        apt_install "$1"
        return
    fi
    as_root systemctl mask "$1.service"
    trap "as_root systemctl unmask $1.service" EXIT
    apt_install "$1"
    as_root systemctl unmask "$1.service"
    trap - EXIT
    as_root systemctl disable "$1.service"
    log "prevented the package from starting $1.service; the check starts its own server."
    log "To start it anyway: systemctl enable --now $1"
}

# Installs `wanted` with the available package manager; exits if there is none.
install_wanted() {
    log "$wanted is missing; installing it"
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
        log "cannot install $wanted: found no apt-get, dnf, apk or brew."
        print_instructions
        exit 1
    fi
    hash -r
}
