import Glibc

/// Where the numbers come from.
package enum Machine {
  /// How many processors this process may use.
  package static var processors: Int { Int(sysconf(Int32(_SC_NPROCESSORS_ONLN))) }

  /// The number of processors, their name, family, model and stepping, and the kernel.
  package static var description: String {
    let processor = lines(of: "/proc/cpuinfo")
    func field(_ name: String) -> String? {
      let line = processor.first { $0.split(separator: ":").first?.trimmed == name }
      return line?.split(separator: ":").last?.trimmed
    }
    let name = field("model name") ?? field("CPU implementer") ?? "unknown processor"
    let numbers = [("family", "cpu family"), ("model", "model"), ("stepping", "stepping")].compactMap { word, key in
      field(key).map { "\(word) \($0)" }
    }
    let model = numbers.isEmpty ? "" : " (\(numbers.joined(separator: " ")))"
    let kernel = lines(of: "/proc/sys/kernel/osrelease").first.map(String.init) ?? "unknown"
    return "\(processors) × \(name)\(model), Linux \(kernel)"
  }

  /// What makes the numbers worth less.
  package static var warnings: [String] {
    var warnings: [String] = []
    if isDebugBuild { warnings.append("this is a debug build; its times say nothing. Build with -c release") }
    let load = lines(of: "/proc/loadavg").first?.split(separator: " ").first.flatMap { Double($0) } ?? 0
    if load > 0.5 * Double(processors) {
      warnings.append("others keep this machine busy (load \(load) on \(processors) processors); trust ratios only")
    }
    return warnings
  }

  private static var isDebugBuild: Bool {
    var isDebug = false
    // The optimiser removes an assertion with all that is in it.
    assert({ isDebug = true }() == ())
    return isDebug
  }
}

extension Substring {
  /// The text without leading and trailing white space.
  fileprivate var trimmed: String {
    var rest = self
    while rest.last?.isWhitespace == true { rest.removeLast() }
    return String(rest.drop(while: \.isWhitespace))
  }
}
