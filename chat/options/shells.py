"""Completion in bash, zsh and fish: what click's scripts do not do.

In bash they lose all names when files are offered too, do not quote, and break words at colons;
in zsh and fish they replace `--option=` along with the value.
"""

import os

from click.shell_completion import (
    BashComplete,
    FishComplete,
    ZshComplete,
    add_completion_class,
    split_arg_string,
)

# bash gets `typed,WORD`, the word before the cursor without quotes, then `TYPE,VALUE` lines.
# Readline replaces only what follows the last colon or = in an unquoted word.
_BASH = """\
%(complete_func)s() {
    local current=${COMP_WORDS[COMP_CWORD]} breaks=${COMP_WORDBREAKS//[^:=]/}
    local typed='' files='' start='' type value
    local -a found=()
    COMPREPLY=()
    while IFS=, read -r type value; do
        case $type in
            typed) typed=$value ;;
            plain) found+=("$value") ;;
            file) files=file typed=$value ;;
            dir) files=directory typed=$value ;;
        esac
    done < <(COMP_LINE="${COMP_LINE:0:COMP_POINT}" \\
        %(complete_var)s=bash_complete "$1" 2>/dev/null)
    if [[ $files ]]; then
        compopt -o filenames
        while IFS= read -r value; do
            found+=("$value")
        done < <(compgen -A "$files" -- "$typed")
    fi
    if [[ $breaks && $current != [\\"\\']* && $typed == *[$breaks]* ]]; then
        start=${typed%%%%"${typed##*[$breaks]}"}
    fi
    for value in "${found[@]}"; do
        value=${value#"$start"}
        if [[ ! $files && $current != [\\"\\']* ]]; then
            printf -v value %%q "$value"
        fi
        COMPREPLY+=("$value")
    done
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""

# Case is ignored, and the last part of a name is enough, as where models are found.
_ZSH = """\
#compdef %(prog_name)s

%(complete_func)s() {
    local -a plain described response
    local type value about
    local -a matching=(-M 'm:{[:lower:][:upper:]}={[:upper:][:lower:]} l:|=*')
    (( ! $+commands[%(prog_name)s] )) && return 1
    response=("${(@f)$(env COMP_WORDS="${words[*]}" COMP_CWORD=$((CURRENT-1)) \\
        %(complete_var)s=zsh_complete %(prog_name)s 2>/dev/null)}")
    [[ $PREFIX == --*=* ]] && compset -P '*='
    for type value about in ${response}; do
        if [[ $type == plain && $about == _ ]]; then
            plain+=("$value")
        elif [[ $type == plain ]]; then
            described+=("$value:$about")
        elif [[ $type == dir ]]; then
            _path_files -/
        elif [[ $type == file ]]; then
            _path_files -f
        fi
    done
    (( $#described )) && _describe -V unsorted described "${matching[@]}"
    (( $#plain )) && compadd -V unsorted "${matching[@]}" -a plain
    (( compstate[nmatches] ))
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    %(complete_func)s "$@"
else
    compdef %(complete_func)s %(prog_name)s
fi
"""

# fish gets the part before the value of `--option=value`, and replaces the whole word.
_FISH = """\
function %(complete_func)s
    set -l start ''
    for line in (env %(complete_var)s=fish_complete COMP_WORDS=(commandline -cp | string collect) \\
            COMP_CWORD=(commandline -ct | string collect) %(prog_name)s 2>/dev/null)
        set -l parts (string split -m 1 , -- $line)
        switch $parts[1]
            case start
                set start $parts[2]
            case file
                printf '%%s\\n' $start(__fish_complete_path $parts[2])
            case dir
                printf '%%s\\n' $start(__fish_complete_directories $parts[2])
            case plain
                printf '%%s\\n' $start$parts[2]
        end
    end
end

complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s)"
"""


class _Bash(BashComplete):
    source_template = _BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        """Split the line up to the cursor: bash itself splits words at colons."""
        line = os.environ["COMP_LINE"]
        words: list[str] = split_arg_string(line)[1:]
        # A blank after the last word begins another one, unless it is quoted.
        ends_word = line[-1:].isspace() and split_arg_string(f"{line}x")[1:-1] == words
        incomplete = "" if ends_word or not words else words.pop()
        return words, incomplete

    def complete(self) -> str:
        _, incomplete = self.get_completion_args()
        return f"typed,{incomplete}\n{super().complete()}"


class _Zsh(ZshComplete):
    source_template = _ZSH


class _Fish(FishComplete):
    source_template = _FISH

    def complete(self) -> str:
        _, incomplete = self.get_completion_args()
        option, equals, _ = incomplete.partition("=")
        start = f"start,{option}=\n" if equals and option.startswith("--") else ""
        return start + super().complete()


def register_shells() -> None:
    """Replace click's completion classes of these shells."""
    add_completion_class(_Bash)
    add_completion_class(_Zsh)
    add_completion_class(_Fish)
