import CTestSupport
import Coroutine
import Glibc

/// What a process holds, that a server could leak.
struct Holdings: CustomStringConvertible {
  let coroutines: Int
  let threads: Int
  let descriptors: Int
  let mappings: Int
  let heapBytes: Int
  let residentBytes: Int

  static var now: Holdings {
    Holdings(
      coroutines: CoroutineRuntime.liveCount,
      threads: entries(of: "/proc/self/task"),
      descriptors: entries(of: "/proc/self/fd"),
      mappings: lines(of: "/proc/self/maps"),
      heapBytes: cts_heap_bytes(),
      residentBytes: residentPages * Int(getpagesize())
    )
  }

  var description: String {
    "\(coroutines) coroutines, \(threads) threads, \(descriptors) descriptors, \(mappings) mappings, "
      + "\(heapBytes / 1_024) KB of the heap, \(residentBytes / 1_024) KB resident"
  }

  /// The directory's own descriptor is among them, each time.
  private static func entries(of path: String) -> Int {
    guard let directory = opendir(path) else { return -1 }
    defer { closedir(directory) }
    var count = 0
    while readdir(directory) != nil { count += 1 }
    return count
  }

  private static func lines(of path: String) -> Int { text(of: path).count { $0 == UInt8(ascii: "\n") } }

  private static var residentPages: Int {
    let fields = text(of: "/proc/self/statm").split(separator: UInt8(ascii: " "))
    return fields.count > 1 ? Int(String(decoding: fields[1], as: UTF8.self)) ?? -1 : -1
  }

  private static func text(of path: String) -> [UInt8] {
    let file = open(path, O_RDONLY)
    defer { close(file) }
    var (all, part) = ([UInt8](), [UInt8](repeating: 0, count: 65_536))
    while true {
      let count = read(file, &part, part.count)
      if count <= 0 { return all }
      all += part[..<count]
    }
  }
}
