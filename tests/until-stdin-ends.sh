#!/bin/sh
# Runs a command, and kills it with SIGKILL when the stdin of this script ends: so with its parent,
# however that dies. The command's own stdin is empty. Ends as the command does; 137 when killed.
#
#   until-stdin-ends.sh COMMAND [ARGUMENT…]
exec 3<&0
"$@" </dev/null 3<&- &
command=$!
{ cat <&3 >/dev/null; kill -9 $command 2>/dev/null; } 2>/dev/null >&2 &
wait $command 2>/dev/null
exit $?
