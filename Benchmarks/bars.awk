# What `table` and `again` share: bars.tsv is read, and a row is compared with its bar.
#
# Medians are in median[RUN, "owner/row"].

function number(x) { return sprintf(x >= 100 ? "%.0f" : x >= 10 ? "%.1f" : "%.2f", x) }
function shown(x, unit) { return number(unit == "ms" ? x / 1e6 : x) }

# Reads a line of bars.tsv.
function read_bar() {
  if (/^#/) return
  order[++rows] = $1; unit[$1] = $2; bar[$1] = $3; limit[$1] = $4; title[$1] = $5
}

# Returns the bar as it is printed.
function bar_shown(row,    parts, n, i, words, text) {
  if (bar[row] == "-") return ""
  n = split(bar[row], parts, ", ")
  for (i = 1; i <= n; i++) {
    words[2] = ""
    split(parts[i], words, " ")
    text = text (i > 1 ? ", " : "") (is_ceiling(words[2]) ? "≤ " : "≥ ") parts[i]
  }
  return text
}

# Whether a bar with this reference is a maximum; a peer's is a minimum.
function is_ceiling(reference) { return reference == "" || reference == "raw" }

# Compares a row of one run with its bar: "yes", "no", "" without a bar, or "?" if a number is missing.
#
# Stores in `measured` what was compared, part by part.
function judge(run, row,    parts, n, i, words, x, verdict) {
  measured = ""
  if (bar[row] == "-") return ""
  if (!((run, "coroutine/" row) in median)) return "?"
  verdict = "yes"
  n = split(bar[row], parts, ", ")
  for (i = 1; i <= n; i++) {
    words[2] = ""
    split(parts[i], words, " ")
    x = compared(run, row, words[2])
    measured = measured (i > 1 ? ", " : "") (x == "" ? "?" : number(x))
    if (x == "") verdict = verdict == "no" ? "no" : "?"
    else if (is_ceiling(words[2]) ? x > words[1] + 0 : x < words[1] + 0) verdict = "no"
  }
  return verdict
}

# Returns our median in raw round trips, a peer's median divided by ours, or our median in the row's unit; "" if a
# number is missing.
function compared(run, row, reference,    ours, other, name) {
  ours = median[run, "coroutine/" row]
  if (reference == "") return unit[row] == "ms" ? ours / 1e6 : ours
  other = reference == "raw" ? "boost/raw_roundtrip_reconciled" : reference "/" row
  if (split(reference, name, ":") == 2) other = name[1] "/" name[2]
  if (!((run, other) in median)) return ""
  if (reference == "raw") return ours / median[run, other]
  return ours > 0 ? median[run, other] / ours : ""
}

# Compares a row with its fixed limit: as it is, and divided by the ratio of the raw round trips.
function fixed_limit(run, row,    key, x, factor) {
  key = "coroutine/" row
  if (limit[row] == "-" || limit[row] == "" || !((run, key) in median)) return ""
  x = unit[row] == "ms" ? median[run, key] / 1e6 : median[run, key]
  if (x <= limit[row] + 0) return "≤ " limit[row]
  factor = median[run, "boost/raw_roundtrip_clean_mxcsr"] / 9.4
  return "≤ " limit[row] (factor > 1 && x / factor <= limit[row] + 0 ? " after division" : " **no**")
}
