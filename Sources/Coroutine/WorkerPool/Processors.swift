import Glibc

/// The number of processors that this process may use.
///
/// It is limited by the affinity mask, and by the CPU quotas of the process's cgroup and of all its ancestors, because
/// a container's limit is often set further up.
enum Processors {
  /// The number of workers of the shared scheduler: `usable`, unless the variable COROUTINE_WORKERS contains a number.
  ///
  /// Traps on any other value than 1 to 64: a server that silently ran with another number than configured would be
  /// worse.
  static var workers: Int {
    guard let setting = getenv("COROUTINE_WORKERS").map({ String(cString: $0) }), !setting.isEmpty else {
      return usable
    }
    guard let count = Int(setting), (1...64).contains(count) else {
      misuse("COROUTINE_WORKERS is '\(setting)'. Set it to a number of workers from 1 to 64, or leave it unset.")
    }
    return count
  }

  /// `workers`, read once: what the shared scheduler has, and what programs are told.
  static let chosen: Int = workers

  static let usable: Int = max(1, min(affinity, quota(membership: read("/proc/self/cgroup") ?? "", read)))

  private static var affinity: Int {
    allowed(status: read("/proc/self/status") ?? "") ?? Int(sysconf(Int32(_SC_NPROCESSORS_ONLN)))
  }

  /// Counts the bits of the line `Cpus_allowed:	ff,ffffffff` of /proc/self/status.
  static func allowed(status: String) -> Int? {
    guard let line = status.split(separator: "\n").first(where: { $0.hasPrefix("Cpus_allowed:") }) else { return nil }
    let count = line.dropFirst("Cpus_allowed:".count).reduce(0) { $0 + ($1.hexDigitValue?.nonzeroBitCount ?? 0) }
    return count > 0 ? count : nil
  }

  /// Returns the tightest quota in whole processors, rounded up.
  ///
  /// `membership` is the text of /proc/self/cgroup. `read` returns the text of a file.
  static func quota(membership: String, _ read: (String) -> String?) -> Int {
    var least = Int.max
    for line in membership.split(separator: "\n") {
      let parts = line.split(separator: ":", maxSplits: 2, omittingEmptySubsequences: false)
      guard parts.count == 3 else { continue }
      let isUnified = parts[1].isEmpty
      guard isUnified || parts[1].split(separator: ",").contains("cpu") else { continue }
      for path in ancestors(String(parts[2])) {
        let found =
          isUnified
          ? unified(read("/sys/fs/cgroup\(path)/cpu.max"))
          : legacy(
            read("/sys/fs/cgroup/cpu\(path)/cpu.cfs_quota_us"),
            read("/sys/fs/cgroup/cpu\(path)/cpu.cfs_period_us")
          )
        least = min(least, found ?? .max)
      }
    }
    return least
  }

  /// Returns "/a/b" and all its ancestors.
  ///
  /// The root is "".
  private static func ancestors(_ path: String) -> [String] {
    var names = path.split(separator: "/")
    var all = [""]
    while !names.isEmpty {
      all.append("/" + names.joined(separator: "/"))
      names.removeLast()
    }
    return all
  }

  private static func unified(_ text: String?) -> Int? {
    guard let words = text?.split(whereSeparator: \.isWhitespace), words.count == 2 else { return nil }
    return processors(Int(words[0]), Int(words[1]))
  }

  private static func legacy(_ quota: String?, _ period: String?) -> Int? {
    processors(number(quota), number(period))
  }

  private static func number(_ text: String?) -> Int? {
    text.flatMap { Int($0.filter { !$0.isWhitespace }) }
  }

  private static func processors(_ quota: Int?, _ period: Int?) -> Int? {
    guard let quota, let period, quota > 0, period > 0 else { return nil }
    return (quota + period - 1) / period
  }

  private static func read(_ path: String) -> String? {
    guard let file = fopen(path, "r") else { return nil }
    defer { fclose(file) }
    var bytes = [UInt8](repeating: 0, count: 4096)
    let count = fread(&bytes, 1, bytes.count, file)
    return String(decoding: bytes.prefix(count), as: UTF8.self)
  }
}
