import CCoroutine
import Glibc

/// Facts about the machine and the process.
enum Machine {
  /// The factor by which the large tests are larger than usual: CO_STRESS, or 1.
  static let stress = getenv("CO_STRESS").flatMap { Int(String(cString: $0)) } ?? 1

  static let isSanitized =
    cco_compiled_sanitizers() & (CCO_ADDRESS_SANITIZER.rawValue | CCO_THREAD_SANITIZER.rawValue) != 0
  static let hasThreadSanitizer = cco_compiled_sanitizers() & CCO_THREAD_SANITIZER.rawValue != 0
  static let hasAddressSanitizer = cco_compiled_sanitizers() & CCO_ADDRESS_SANITIZER.rawValue != 0

  static var page: Int { Int(sysconf(Int32(_SC_PAGESIZE))) }

  /// The text of a file below /proc, whose size is not known in advance.
  static func text(of path: String) -> String {
    let file = open(path, O_RDONLY)
    guard file >= 0 else { return "" }
    defer { close(file) }
    var bytes: [UInt8] = []
    var part = [UInt8](repeating: 0, count: 64 << 10)
    while true {
      let count = read(file, &part, part.count)
      if count <= 0 { break }
      bytes += part[..<count]
    }
    return String(decoding: bytes, as: UTF8.self)
  }

  /// Memory mappings of this process.
  static var mappings: Int { text(of: "/proc/self/maps").utf8.count { $0 == UInt8(ascii: "\n") } }

  static var mostMappings: Int {
    Int(text(of: "/proc/sys/vm/max_map_count").split(whereSeparator: \.isWhitespace).first ?? "") ?? 65_530
  }

  /// Address space and resident memory of this process, in bytes.
  static var memory: (size: Int, resident: Int) {
    let words = text(of: "/proc/self/statm").split(separator: " ").compactMap { Int($0) }
    return (words[0] * page, words[1] * page)
  }

  /// Whether the page that contains `address` is in memory.
  static func isResident(_ address: UnsafeRawPointer) -> Bool {
    let start = UnsafeMutableRawPointer(bitPattern: UInt(bitPattern: address) & ~UInt(page - 1))
    var answer: UInt8 = 0
    return mincore(start, page, &answer) == 0 && answer & 1 == 1
  }

  /// The nanoseconds that `body` takes.
  static func nanoseconds(_ body: () -> Void) -> Double { nanoseconds(of: CLOCK_MONOTONIC, body) }

  /// The processor time of the calling thread for `body`, in nanoseconds.
  static func processorNanoseconds(_ body: () -> Void) -> Double { nanoseconds(of: CLOCK_THREAD_CPUTIME_ID, body) }

  private static func nanoseconds(of clock: clockid_t, _ body: () -> Void) -> Double {
    var start = timespec()
    var end = timespec()
    clock_gettime(clock, &start)
    body()
    clock_gettime(clock, &end)
    return Double(end.tv_sec - start.tv_sec) * 1e9 + Double(end.tv_nsec - start.tv_nsec)
  }

  /// Recurses until `depth` frames of some 100 bytes each are live, and returns.
  @inline(never)
  static func descend(_ depth: Int) -> Int {
    withUnsafeTemporaryAllocation(of: Int.self, capacity: 8) { frame in
      frame.initialize(repeating: depth)
      let below = depth == 0 ? 0 : descend(depth - 1)
      return below &+ frame[depth & 7] &- depth &+ 1
    }
  }

  /// Recurses until the stack is used up, in frames of some 1,000 bytes.
  ///
  /// ThreadSanitizer keeps a list of a thread's calls with room for 65,536 entries, and writes beyond its end without a
  /// check, so there must be few frames in 16 MiB.
  @inline(never) @discardableResult
  static func exhaustStack(_ depth: Int = 1 << 28) -> Int {
    withUnsafeTemporaryAllocation(of: Int.self, capacity: 120) { frame in
      frame.initialize(repeating: depth)
      let below = depth == 0 ? 0 : exhaustStack(depth - 1)
      return below &+ frame[depth & 63] &- depth &+ 1
    }
  }
}
