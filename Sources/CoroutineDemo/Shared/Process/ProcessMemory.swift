#if Demo
import Foundation

/// How much memory this process has, by the kernel's account.
enum ProcessMemory {
  /// What is resident now, in bytes.
  static var resident: Int { status("VmRSS:") }

  /// The most that ever was.
  static var peak: Int { status("VmHWM:") }

  private static func status(_ field: String) -> Int {
    guard let text = try? String(contentsOfFile: "/proc/self/status", encoding: .utf8) else { return 0 }
    for line in text.split(separator: "\n") where line.hasPrefix(field) {
      return (line.split(separator: " ").dropLast().last.flatMap { Int($0) } ?? 0) << 10
    }
    return 0
  }
}
#endif
