/// Writes a snapshot as JSON, in the form that `Snapshot` encodes to, in parts of about 64 KiB.
///
/// Written by hand, because the core does not import Foundation, and because an encoder would keep all of the text.
struct SnapshotJSON {
  private typealias Snapshot = CoroutineRuntime.Snapshot

  private var buffer: [UInt8] = []
  private var isFirst = true

  static var part: Int { 64 << 10 }

  init() {
    buffer.reserveCapacity(Self.part + 4096)
    add("{\"coroutines\":[")
  }

  mutating func add(_ entry: CoroutineRuntime.Snapshot.Coroutine) {
    add(isFirst ? "\n{\"id\":" : ",\n{\"id\":")
    isFirst = false
    add(entry.id)
    if let name = entry.name { addString("name", name) }
    addString("launchSite", entry.launchSite)
    addString("state", entry.state.rawValue)
    if let wait = entry.wait { add(wait) }
    addString("scheduler", entry.scheduler)
    add(",\"since\":")
    add(UInt64(max(0, entry.since.wholeNanoseconds)))
    add(entry.isCancelled ? ",\"isCancelled\":true" : ",\"isCancelled\":false")
    add(entry.isTorn ? ",\"isTorn\":true" : ",\"isTorn\":false")
    add(",\"stack\":[")
    for (index, address) in entry.stack.enumerated() {
      if index > 0 { add(",") }
      add(UInt64(address))
    }
    add(entry.isCut ? "],\"isCut\":true" : "],\"isCut\":false")
    if let thread = entry.thread {
      add(",\"thread\":")
      add(UInt64(max(0, thread)))
    }
    if let activity = entry.activity { addString("activity", activity) }
    add("}")
  }

  private mutating func add(_ wait: CoroutineRuntime.Snapshot.Wait) {
    add(",\"wait\":{\"kind\":\"")
    add(wait.kind)
    add("\"")
    if let object = wait.object {
      add(",\"object\":")
      add(UInt64(object))
    }
    if let owner = wait.owner {
      add(",\"owner\":")
      add(owner)
    }
    addString("text", wait.text)
    add("}")
  }

  mutating func end(
    _ lateTimers: [Duration],
    _ ended: [CoroutineRuntime.Snapshot.Ended],
    _ tasks: [CoroutineRuntime.Snapshot.SwiftTask]
  ) {
    add("],\n\"lateTimers\":[")
    for (index, time) in lateTimers.enumerated() {
      if index > 0 { add(",") }
      add(UInt64(max(0, time.wholeNanoseconds)))
    }
    add("],\n\"ended\":[")
    for (index, entry) in ended.enumerated() {
      add(index == 0 ? "\n{\"id\":" : ",\n{\"id\":")
      add(entry.id)
      if let name = entry.name { addString("name", name) }
      addString("launchSite", entry.launchSite)
      addString("ending", entry.ending.rawValue)
      if let error = entry.error { addString("error", error) }
      add(",\"age\":")
      add(UInt64(max(0, entry.age.wholeNanoseconds)))
      if entry.isRestarted { add(",\"isRestarted\":true") }
      add("}")
    }
    add("],\n\"tasks\":[")
    for (index, task) in tasks.enumerated() {
      add(index == 0 ? "\n{" : ",\n{")
      if let id = task.id { add("\"id\":\(id),") }
      add("\"isRunning\":\(task.isRunning)")
      addString("scheduler", task.scheduler)
      add("}")
    }
    add("]}\n")
  }

  /// Passes on what is there, if that is a part or `all` is wanted.
  mutating func flush(all: Bool = false, _ write: (UnsafeRawBufferPointer) throws -> Void) rethrows {
    guard all || buffer.count >= Self.part, !buffer.isEmpty else { return }
    try buffer.withUnsafeBytes(write)
    buffer.removeAll(keepingCapacity: true)
  }

  // MARK: Words

  private mutating func add(_ text: String) { buffer.append(contentsOf: text.utf8) }

  private mutating func add(_ number: UInt64) {
    var rest = number
    let start = buffer.count
    repeat {
      buffer.append(UInt8(ascii: "0") + UInt8(rest % 10))
      rest /= 10
    } while rest > 0
    buffer[start...].reverse()
  }

  private mutating func addString(_ key: String, _ value: String) {
    add(",\"")
    add(key)
    add("\":\"")
    var value = value
    value.withUTF8 { bytes in
      for byte in bytes {
        switch byte {
        case UInt8(ascii: "\""), UInt8(ascii: "\\"):
          buffer.append(UInt8(ascii: "\\"))
          buffer.append(byte)
        case 0..<0x20, 0x7F: add("\\u00\(byte < 16 ? "0" : "")\(String(byte, radix: 16))")
        default: buffer.append(byte)
        }
      }
    }
    add("\"")
  }
}
