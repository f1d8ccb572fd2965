import Glibc

/// What the kernel says of this process's memory, in bytes.
package struct Memory: Sendable {
  /// Pages that are there (VmRSS): what peers are compared by.
  package let resident: Int
  /// Page tables (VmPTE), which VmRSS leaves out.
  package let pageTables: Int

  /// As of now.
  package static var current: Memory {
    let status = lines(of: "/proc/self/status")
    return Memory(resident: kilobytes("VmRSS:", in: status) << 10, pageTables: kilobytes("VmPTE:", in: status) << 10)
  }

  /// What the machine could still give, in bytes; 0 where the kernel does not say.
  package static var available: Int { kilobytes("MemAvailable:", in: lines(of: "/proc/meminfo")) << 10 }

  /// How often this process has touched a page that was not there.
  package static var minorFaults: Int { usage.ru_minflt }

  /// The most that was there at any time, in bytes.
  package static var peak: Int { usage.ru_maxrss << 10 }

  private static var usage: rusage {
    var usage = rusage()
    getrusage(__rusage_who_t(RUSAGE_SELF.rawValue), &usage)
    return usage
  }

  private static func kilobytes(_ key: String, in lines: [Substring]) -> Int {
    let fields = lines.first { $0.hasPrefix(key) }?.split(whereSeparator: { $0 == " " || $0 == "\t" })
    return fields.flatMap { $0.count > 1 ? Int($0[1]) : nil } ?? 0
  }
}

/// The lines of a small file; none where it cannot be read.
package func lines(of path: String) -> [Substring] {
  guard let file = fopen(path, "r") else { return [] }
  defer { fclose(file) }
  var text: [UInt8] = []
  var buffer = [UInt8](repeating: 0, count: 4096)
  while case let count = fread(&buffer, 1, buffer.count, file), count > 0 { text += buffer[..<count] }
  return String(decoding: text, as: UTF8.self).split(separator: "\n")
}
