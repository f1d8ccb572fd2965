# What `table` and `again` share: bars.tsv, and whether a bar holds. The first file is bars.tsv.
#
# Numbers of the programs are in median[RUN, "owner/row"], run by run.

function number(x) { return sprintf(x >= 100 ? "%.0f" : x >= 10 ? "%.1f" : "%.2f", x) }
function shown(x, unit) { return number(unit == "ms" ? x / 1e6 : x) }

# A line of bars.tsv.
function read_bar() {
  if (/^#/) return
  order[++rows] = $1; unit[$1] = $2; bar[$1] = $3; reference[$1] = $4; what[$1] = $5
}

# How a bar is printed.
function bar_shown(row,    parts, n, i, words, text) {
  if (bar[row] == "-") return ""
  n = split(bar[row], parts, ", ")
  for (i = 1; i <= n; i++) {
    split(parts[i], words, " ")
    text = text (i > 1 ? ", " : "")
    if (words[2] == "") text = text "≤ " words[1]
    else if (words[2] == "raw") text = text "≤ " words[1] " raw"
    else text = text "≥ " words[1] " " words[2]
  }
  return text
}

# Judges a row of one run: "yes", "no", "" without a bar, or "?" where something was not measured. Leaves in `measured` what
# the bar is held against, part by part.
function judge(run, row,    key, parts, n, i, words, x, verdict) {
  measured = ""
  if (bar[row] == "-") return ""
  key = "coroutine/" row
  if (!((run, key) in median)) return "?"
  verdict = "yes"
  n = split(bar[row], parts, ", ")
  for (i = 1; i <= n; i++) {
    words[2] = ""
    split(parts[i], words, " ")
    x = against(run, row, words[2])
    measured = measured (i > 1 ? ", " : "") (x == "" ? "?" : number(x))
    if (x == "") verdict = verdict == "no" ? "no" : "?"
    else if (words[2] == "" || words[2] == "raw" ? x > words[1] + 0 : x < words[1] + 0) verdict = "no"
  }
  return verdict
}

# Our median in raw round trips, a peer's in ours, or in the row's unit; "" where one was not measured.
function against(run, row, whom,    ours, other) {
  ours = median[run, "coroutine/" row]
  if (whom == "") return unit[row] == "ms" ? ours / 1e6 : ours
  other = whom == "raw" ? "boost/raw_roundtrip_clean_mxcsr" : whom "/" row
  if (!((run, other) in median)) return ""
  if (whom == "raw") return ours / median[run, other]
  return ours > 0 ? median[run, other] / ours : ""
}

# How the row's time compares with that on the reference machine, as it is and by the raw round trip.
function by_reference(run, row,    key, x, factor) {
  key = "coroutine/" row
  if (reference[row] == "-" || reference[row] == "" || !((run, key) in median)) return ""
  x = shown(median[run, key], unit[row]) + 0
  if (x <= reference[row] + 0) return "≤ " reference[row]
  factor = median[run, "boost/raw_roundtrip_clean_mxcsr"] / 9.4
  return "≤ " reference[row] (factor > 1 && x / factor <= reference[row] + 0 ? " after division" : " **no**")
}
