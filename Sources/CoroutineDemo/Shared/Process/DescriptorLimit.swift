#if Demo
import Foundation

/// How many descriptors, which files and connections need, this process may have.
enum DescriptorLimit {
  /// Raises the soft limit to the hard one, which every process may do.
  ///
  /// The soft limit is 1,024 as a rule, for programs that use `select`; this one does not.
  static func raise() {
    var limit = current
    limit.rlim_cur = limit.rlim_max
    // Refused, the soft limit stays, and the number of readers is cut to it.
    setrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit)
  }

  /// How many there may be.
  static var count: Int { Int(clamping: current.rlim_cur) }

  /// How many can still be opened.
  static var left: Int {
    let open = (try? FileManager.default.contentsOfDirectory(atPath: "/proc/self/fd").count) ?? 0
    return max(0, count - open)
  }

  /// What to say when one could not be opened.
  static var exceeded: String { "too many open files: the limit is \(count); raise it with ulimit -n" }

  /// What `errno` means.
  static func text(_ code: Int32) -> String { code == EMFILE ? exceeded : String(cString: strerror(code)) }

  private static var current: rlimit {
    var limit = rlimit()
    getrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit)
    return limit
  }
}
#endif
