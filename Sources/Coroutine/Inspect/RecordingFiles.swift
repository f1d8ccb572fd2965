internal import CCoroutine
import Glibc
import Synchronization

// The files that the flight recorder writes at a stall, a deadlock and a fatal signal. The threads that notice these
// only leave a note (Sources/CCoroutine/Inspect/Incident.c); a thread of its own writes.
//
//   NONE --the first folder: the thread starts--> WAITING --notes--> WRITING --> WAITING
//
// Invariants
//  1. `state` is accessed under `lock`. The thread starts once in a process; a forked child starts another one.
//  2. A file is complete when it has its name: it is written under another one, and renamed.

enum RecordingFiles {
  private struct State {
    var folder: String?
    /// The number of files that were written about each kind of incident.
    var counts: [UInt32: Int] = [:]
    /// The process that has the thread; 0 without one.
    var owner: pid_t = 0
  }

  private struct Kind {
    let incident: cco_incident
    let name: String
    let most: Int
  }

  private static let kinds = [
    Kind(incident: CCO_INCIDENT_SIGNAL, name: "signal", most: 1),
    Kind(incident: CCO_INCIDENT_DEADLOCK, name: "deadlock", most: 4),
    Kind(incident: CCO_INCIDENT_STALL, name: "stall", most: 4),
  ]

  private static let lock = ThreadLock()
  // Sound because it is accessed under `lock`.
  nonisolated(unsafe) private static var state = State()

  /// Sets the folder; nil for no files.
  static func use(_ folder: String?) {
    lock.withLock {
      state.folder = folder
      guard folder != nil, state.owner != getpid() else { return }
      state.counts = [:]
      cco_begin_incidents()
      if DetachedThread.start("co-recorder", serve) == 0 { state.owner = getpid() } else { cco_forget_incidents() }
    }
  }

  @Sendable private static func serve() {
    while true {
      let taken = cco_take_incidents()
      for kind in kinds where taken & 1 << kind.incident.rawValue != 0 { write(about: kind) }
      cco_end_incidents(taken)
    }
  }

  private static func write(about kind: Kind) {
    guard Events.isOn.load(ordering: .relaxed), let path = nextPath(kind) else { return }
    let code = write(CoroutineRuntime.recording(), to: path)
    let shown = path.asLine
    writeToStandardError(
      code == 0
        ? "Coroutine: the recording before a \(kind.name) is in \(shown)\n"
        : "Coroutine: the recording before a \(kind.name) could not be written to \(shown): \(String(cString: strerror(code)))\n"
    )
  }

  /// The path of the next file; nil without a folder, and if there are enough files.
  private static func nextPath(_ kind: Kind) -> String? {
    lock.withLock {
      let count = state.counts[kind.incident.rawValue, default: 0] + 1
      guard let folder = state.folder, count <= kind.most else { return nil }
      state.counts[kind.incident.rawValue] = count
      return "\(folder)/coroutine-\(getpid())-\(kind.name)-\(count).json"
    }
  }

  /// Writes a file, and returns 0 or an error number.
  private static func write(_ bytes: [UInt8], to path: String) -> CInt {
    let temporary = path + ".part"
    let file = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0o600)
    guard file >= 0 else { return errno }
    var code: CInt = 0
    bytes.withUnsafeBytes { bytes in
      var written = 0
      while written < bytes.count, code == 0, let start = bytes.baseAddress {
        let count = Glibc.write(file, start + written, bytes.count - written)
        if count > 0 { written += count } else if errno != EINTR { code = errno }
      }
    }
    if close(file) != 0, code == 0 { code = errno }
    if code == 0, rename(temporary, path) != 0 { code = errno }
    if code != 0 { unlink(temporary) }
    return code
  }
}
