import Glibc

/// Where the numbers come from.
package enum Machine {
  /// How many processors this process may use.
  package static var processors: Int { Int(sysconf(Int32(_SC_NPROCESSORS_ONLN))) }

  /// The processor's name, the number of processors and the kernel.
  package static var description: String {
    let model = lines(of: "/proc/cpuinfo").first { $0.hasPrefix("model name") || $0.hasPrefix("CPU implementer") }
    let name = model?.split(separator: ":").last.map { String($0.drop { $0 == " " }) } ?? "unknown processor"
    let kernel = lines(of: "/proc/sys/kernel/osrelease").first.map(String.init) ?? "unknown"
    return "\(processors) × \(name), Linux \(kernel)"
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
