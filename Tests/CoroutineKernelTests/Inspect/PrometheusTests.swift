import Testing

@testable import Coroutine

@Suite("CoroutineRuntime.metricsText")
struct PrometheusTests {
  @Test func `the text keeps to the format of Prometheus`() async {
    await #expect(processExitsWith: .success) {
      let gate = Gate()
      try await onSerialQueue {
        for _ in 0..<3 { co_launch { try gate.pass() } }
        for _ in 0..<500 { try co_yield() }
      }
      let metrics = CoroutineRuntime.metrics
      let families = try Exposition.parse(PrometheusText.of(metrics))
      #expect(families["coroutine_live"]?.samples.map(\.value) == [3])
      #expect(families["coroutine_waiting"]?.samples.map(\.labels) == [["kind": "promise"]])
      #expect(families["coroutine_switches_total"]?.samples.first?.value == Double(metrics.switches))
      let runs = try #require(families["coroutine_run_length_seconds"])
      #expect(runs.type == "histogram")
      let count = metrics.runLength.counts.reduce(0, +)
      #expect(count > 0)
      #expect(runs.samples.last { $0.name.hasSuffix("_count") }?.value == Double(count))
      #expect(families.count == 28)
    }
  }

  @Test func `a label's value cannot end the label or the line`() throws {
    #expect(PrometheusText.escaped("a\"b\\c\nd") == #"a\"b\\c\nd"#)
    // With a combining mark it is one character.
    let escaped = PrometheusText.escaped("\"\u{301}\\\u{301}").unicodeScalars
    #expect(escaped.elementsEqual("\\\"\u{301}\\\\\u{301}".unicodeScalars))
  }

  @Test(arguments: [
    "coroutine_live 3\n", "# TYPE a gauge\na 1\n", "# HELP a x\n# TYPE a gauge\na one\n",
    "# HELP a x\n# TYPE a counter\na 1\n",
    "# HELP a x\n# TYPE a histogram\na_bucket{le=\"1.0\"} 2\na_bucket{le=\"2.0\"} 1\n"
      + "a_bucket{le=\"+Inf\"} 2\na_sum 1\na_count 2\n",
    "# HELP a x\n# TYPE a histogram\na_bucket{le=\"1.0\"} 2\na_sum 1\na_count 2\n", "# HELP a x\n# TYPE a gauge\na 1",
  ])
  func `the parser of these tests refuses what Prometheus refuses`(_ text: String) {
    #expect(throws: Exposition.Malformed.self) { try Exposition.parse(text) }
  }
}

/// A strict parser of the text format: each family has HELP and TYPE before its samples, names and numbers are legal,
/// counters end in `_total`, and the buckets of a histogram are cumulative and end with +Inf.
private enum Exposition {
  struct Malformed: Error { let line: String }
  struct Sample {
    let name: String
    let labels: [String: String]
    let value: Double
  }
  struct Family {
    var type: String
    var samples: [Sample] = []
  }

  static func parse(_ text: String) throws -> [String: Family] {
    guard text.hasSuffix("\n") else { throw Malformed(line: "no newline at the end") }
    var families: [String: Family] = [:]
    var (help, current): (String?, String?) = (nil, nil)
    for line in text.dropLast().split(separator: "\n", omittingEmptySubsequences: false).map(String.init) {
      let words = line.split(separator: " ", maxSplits: 3).map(String.init)
      if line.hasPrefix("# HELP ") {
        guard words.count == 4, isName(words[2]), families[words[2]] == nil else { throw Malformed(line: line) }
        help = words[2]
      } else if line.hasPrefix("# TYPE ") {
        guard words.count == 4, words[2] == help, ["gauge", "counter", "histogram"].contains(words[3]) else {
          throw Malformed(line: line)
        }
        families[words[2]] = Family(type: words[3])
        current = words[2]
      } else {
        guard let name = current, let type = families[name]?.type else { throw Malformed(line: line) }
        let sample = try sample(line)
        let allowed = type == "histogram" ? ["_bucket", "_sum", "_count"].map { name + $0 } : [name]
        guard allowed.contains(sample.name), type != "counter" || name.hasSuffix("_total") else {
          throw Malformed(line: line)
        }
        families[name]?.samples.append(sample)
      }
    }
    for (name, family) in families where family.type == "histogram" { try check(name, family) }
    return families
  }

  private static func sample(_ line: String) throws -> Sample {
    guard let space = line.lastIndex(of: " "), let value = Double(line[line.index(after: space)...]) else {
      throw Malformed(line: line)
    }
    var name = String(line[..<space])
    var labels: [String: String] = [:]
    if let brace = name.firstIndex(of: "{") {
      let parts = name[name.index(after: brace)...].dropLast().split(separator: "=", maxSplits: 1)
      guard name.hasSuffix("\"}"), parts.count == 2, parts[1].hasPrefix("\"") else { throw Malformed(line: line) }
      labels[String(parts[0])] = String(parts[1].dropFirst().dropLast())
      name = String(name[..<brace])
    }
    guard isName(name) else { throw Malformed(line: line) }
    return Sample(name: name, labels: labels, value: value)
  }

  private static func check(_ name: String, _ family: Family) throws {
    let buckets = family.samples.filter { $0.name == name + "_bucket" }
    let bounds = buckets.map { $0.labels["le"].flatMap { $0 == "+Inf" ? .infinity : Double($0) } ?? .nan }
    let counts = buckets.map(\.value)
    let total = family.samples.first { $0.name == name + "_count" }?.value
    guard bounds.last == .infinity, zip(bounds, bounds.dropFirst()).allSatisfy(<),
      zip(counts, counts.dropFirst()).allSatisfy(<=), total == counts.last,
      family.samples.contains(where: { $0.name == name + "_sum" })
    else {
      throw Malformed(line: name)
    }
  }

  private static func isName(_ text: String) -> Bool {
    text.wholeMatch(of: /[a-zA-Z_:][a-zA-Z0-9_:]*/) != nil
  }
}
