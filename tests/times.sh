#!/bin/sh
# Makes target/test-times.csv of a run of the tests, and prints what took longest and was skipped:
#
#   times.sh JUNIT CSV
#
# The file has a line for each test: its name, its group (library; of the suite guests, lab, alone
# and other), the seconds that it took, and of these those of processor time, where they are known:
# the rest it waited.
set -eu
junit=$1 csv=$2
{
    echo name,group,wall,cpu
    awk '
        function attribute(name) {
            return match($0, " " name "=\"[^\"]*\"") ? substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 4) : ""
        }
        /<testcase / {
            name = attribute("name"); wall = attribute("time"); cpu = ""
            group = attribute("classname") ~ /::suite$/ ? "other" : "library"
        }
        # Output follows in the same or in later lines; the group of nextest, or none, ends a line.
        match($0, /(^|>)CPU [0-9.]+ [@a-z]+/) {
            split(substr($0, RSTART, RLENGTH), words, " ")
            cpu = words[2]
            group = words[3] ~ /^@/ ? "lab" : words[3]
        }
        match($0, /SKIP [^<]*/) { print substr($0, RSTART, RLENGTH) > "/dev/stderr" }
        /<\/testcase>|<testcase .*\/>/ { printf "%s,%s,%.2f,%s\n", name, group, wall, cpu }
    ' "$junit"
} > "$csv"
echo 'The 30 slowest tests (seconds; computing: of these, of processor time):'
sed 1d "$csv" | sort -t, -k3,3nr | head -n 30 | awk -F, '{ printf "%8.1f  computing %7s  %s\n", $3, $4, $1 }'
echo 'The sum of each group:'
sed 1d "$csv" | awk -F, '
    { count[$2]++; wall[$2] += $3; cpu[$2] += $4 }
    END { for (group in count)
        printf "%-10s %5d  %8.1f s, computing %8.1f s\n", group, count[group], wall[group], cpu[group] }' | sort
