import Glibc
import Harness

/// The committed numbers: lines of `operation <TAB> allocations of one`, comments after `#`.
struct Thresholds {
  private let path: String
  private let committed: [String: Double]

  init(path: String) {
    self.path = path
    var committed: [String: Double] = [:]
    for line in lines(of: path) where !line.hasPrefix("#") {
      let fields = line.split(separator: "\t")
      if fields.count == 2, let number = Double(fields[1]) { committed[String(fields[0])] = number }
    }
    self.committed = committed
  }

  /// Says of each number that is not as committed what it is and what to do; true: there is none.
  func hold(_ counts: Counts) -> Bool {
    var holds = true
    for (name, found) in counts.rows where committed[name] != found {
      holds = false
      switch committed[name] {
      case nil: complain("error: \(name) allocates \(found) times an operation; \(path) has no number for it")
      case let number? where found > number:
        complain("error: \(name) allocates \(found) times an operation, \(number) are allowed")
      case let number?:
        complain("error: \(name) allocates only \(found) times an operation, not \(number): lower the committed number")
      }
    }
    for name in committed.keys.sorted() where !counts.rows.contains(where: { $0.name == name }) {
      holds = false
      complain("error: \(path) has a number for \(name), which nobody counts")
    }
    print(holds ? "allocations: all \(counts.rows.count) as committed" : "allocations: not as committed in \(path)")
    if !holds { complain("If that is meant: Benchmarks/run --update-thresholds, and say in the change why.") }
    return holds
  }

  func write(_ counts: Counts) {
    guard let file = fopen(path, "w") else { fail("cannot write \(path): \(String(cString: strerror(errno)))") }
    defer { fclose(file) }
    fputs("# Allocations of one operation, exactly. Written by Benchmarks/run --update-thresholds.\n", file)
    for (name, found) in counts.rows {
      fputs("\(name)\t\(found == found.rounded() ? "\(Int(found))" : "\(found)")\n", file)
    }
  }
}
