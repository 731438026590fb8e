# The usage of the scripts for sh, which source this file first. Not to be run itself. The comment at the
# head of a script is its usage.

# Prints the usage and exits, if one of these arguments is --help or -h.
answer_help() {
    for argument; do
        case $argument in
        -h | --help)
            sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
            exit 0
            ;;
        esac
    done
}

# Exits because of an argument that the script does not know.
reject() {
    printf '%s: unknown argument %s; --help prints the usage\n' "${0##*/}" "$1" >&2
    exit 2
}

# For a script that takes no other arguments than --help.
take_no_arguments() {
    answer_help "$@"
    [ $# -eq 0 ] || reject "$1"
}
