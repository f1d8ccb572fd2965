internal import CCoroutineInspect
internal import CLinux
import Glibc
import Synchronization

/// Writes a recording as trace events (the JSON format that Perfetto reads).
///
/// Process 1 has a track for each ring, process 2 one for each coroutine, process 3 one for each Task whose parts have
/// run there. What is between two events is a slice, of the phase `X`:
///
///     on a ring's track        from `run` to `park`, `yield`, `end` or `leave` of the same coroutine
///     on a coroutine's track   from each of its events to the next: ready, running, or waiting
///     on a Task's track        the same; `suspended` only if it has gone on, because its end is no event
///
/// A slice whose beginning the ring has overwritten is missing. What goes on at the end of the recording is a slice up
/// to the end. A state that began before the oldest event of a full ring is not, unless it is running: its end may have
/// been overwritten there. The end of a run is in the ring of its beginning. A mark on a ring's track has the number of
/// the events that are overwritten.
///
/// The end of a run is stamped after the switch, and its thread may have lost the processor before. If the coroutine
/// was woken or resumed elsewhere before that time, the end does not change its state.
///
/// An arrow is a pair of the phases `s` and `f`, with one number, from the time of `wake` on the waker's track to the
/// next `run` of the woken coroutine.
struct TraceWriter {
  private let events: [RecordedEvent]
  /// The time from which on events are written; those before tell what goes on then.
  private let start: UInt64
  private let end: UInt64
  private let losses: [RecordedEvent.Loss]
  private var text: [UInt8] = []
  private var isFirst = true
  private var sites: [UInt32: String] = [:]
  /// The state of each coroutine since its last event.
  private var states: [Runner: (name: String, since: UInt64)] = [:]
  /// What runs on each track: the last one has interrupted the others by an immediate start, or is a Task's coroutine.
  private var running: [Int: [(runner: Runner, since: UInt64)]] = [:]
  /// The number of the arrow that leads to the next run of a coroutine.
  private var arrows: [UInt32: Int] = [:]
  private var lastArrow = 0
  /// Of those that live.
  private let names: [UInt32: String]

  /// A coroutine, or a Task; a Task's number is 0 if it is not known.
  private struct Runner: Hashable {
    let isTask: Bool
    let id: UInt32

    init(_ event: RecordedEvent) {
      isTask = event.isOfTask
      id = isTask ? event.argument : event.id
    }

    var process: Int { isTask ? 3 : 2 }
  }

  init(
    _ events: [RecordedEvent],
    from start: UInt64 = 0,
    end: UInt64,
    losses: [RecordedEvent.Loss] = [],
    _ names: [UInt32: String] = [:]
  ) {
    (self.events, self.start, self.losses, self.names) = (events, start, losses, names)
    self.end = max(end, events.last?.time ?? 0)
  }

  /// Writes the document; `missing` are the names of what has no ring.
  mutating func write(_ rings: [EventRing], without missing: Set<String> = []) -> [UInt8] {
    text.append(contentsOf: #"{"displayTimeUnit":"ns","traceEvents":["#.utf8)
    for event in events where event.kind == .site { sites[event.id] = "\(event.file):\(event.argument)" }
    emit(#""ph":"M","pid":1,"name":"process_name","args":{"name":"workers and queues"}"#)
    emit(#""ph":"M","pid":2,"name":"process_name","args":{"name":"coroutines"}"#)
    for ring in rings.sorted(by: { $0.number < $1.number }) {
      emit(
        #""ph":"M","pid":1,"tid":\#(ring.number),"name":"thread_name","args":{"name":\#(JSONText.quoted(ring.label))}"#
      )
    }
    for id in coroutines.sorted() {
      emit(#""ph":"M","pid":2,"tid":\#(id),"name":"thread_name","args":{"name":\#(JSONText.quoted(title(id)))}"#)
    }
    let tasks = Set(events.lazy.filter { $0.isOfTask && $0.argument != 0 }.map(\.argument)).sorted()
    if !tasks.isEmpty { emit(#""ph":"M","pid":3,"name":"process_name","args":{"name":"Swift Tasks"}"#) }
    for task in tasks {
      emit(#""ph":"M","pid":3,"tid":\#(task),"name":"thread_name","args":{"name":"Task \#(task)"}"#)
    }
    if !missing.isEmpty {
      let name = JSONText.quoted("not recorded: " + missing.sorted().joined(separator: ", "))
      emit(#""ph":"i","s":"g","pid":1,"tid":0,"ts":\#(time(start)),"name":\#(name)"#)
    }
    for loss in losses where loss.end > start {
      let name = "\(loss.count) events before this are overwritten"
      emit(#""ph":"i","s":"t","pid":1,"tid":\#(loss.track),"ts":\#(time(loss.end)),"name":"\#(name)""#)
    }
    for event in events { add(event) }
    // The time of the oldest event that a full ring has kept; of the latest one.
    let horizon = losses.lazy.map(\.end).max() ?? 0
    for (runner, state) in states where state.name == "running" || state.since >= horizon {
      if state.name != Self.suspended { slice(runner.process, Int(runner.id), state.name, state.since, end) }
    }
    for (track, runs) in running { for run in runs { slice(1, track, title(run.runner), run.since, end) } }
    text.append(contentsOf: "]}\n".utf8)
    return text
  }

  /// The coroutines with a track: those that live at the start of what is written, or are launched later.
  private var coroutines: Set<UInt32> {
    var living: Set<UInt32> = []
    for event in events where event.isOfCoroutine {
      if event.kind == .end, event.time < start { living.remove(event.id) } else { living.insert(event.id) }
    }
    return living
  }

  private static var suspended: String { "suspended" }

  private func title(_ runner: Runner) -> String {
    guard runner.isTask else { return title(runner.id) }
    return runner.id == 0 ? "a Swift job" : "Task \(runner.id)"
  }

  private func title(_ id: UInt32) -> String {
    "#\(id)" + (names[id].map { " \"\($0.asName)\"" } ?? "") + (sites[id].map { " \($0)" } ?? "")
  }

  private mutating func add(_ event: RecordedEvent) {
    switch event.kind {
    case .launch: change(event, to: "ready")
    case .site: break
    case .run:
      change(event, to: "running")
      running[event.track, default: []].append((Runner(event), event.time))
      guard let arrow = arrows.removeValue(forKey: event.id), event.time >= start else { break }
      emit(
        #""ph":"f","bp":"e","pid":1,"tid":\#(event.track),"ts":\#(time(event.time)),"id":\#(arrow),"name":"wake","cat":"wake""#
      )
    case .park:
      let kind = WaitKind(rawValue: UInt8(truncatingIfNeeded: event.argument))
      if endRun(event) { change(event, to: "waiting" + (kind.map { $0 == .start ? "" : ": \($0.name)" } ?? "")) }
    case .yield, .leave:
      if endRun(event) { change(event, to: "ready") }
    case .end:
      endRun(event)
      change(event, to: nil)
    case .wake:
      change(event, to: "ready")
      guard event.time >= start else { break }
      lastArrow += 1
      arrows[event.id] = lastArrow
      emit(
        #""ph":"s","pid":1,"tid":\#(event.track),"ts":\#(time(event.time)),"id":\#(lastArrow),"name":"wake","cat":"wake","args":{"woken":\#(event.id),"by":\#(event.argument)}"#
      )
    case .taskReady: change(event, to: "ready")
    case .taskRun:
      change(event, to: "running")
      running[event.track, default: []].append((Runner(event), event.time))
    case .taskLeave:
      if endRun(event) { change(event, to: Self.suspended) }
    case .steal: mark(event, "steal", "coroutines")
    case .sliceEnd: mark(event, "end of time slice", nil)
    case .lateTimer: mark(event, "late timer", "microseconds")
    case .poll: mark(event, "descriptor events", "coroutines")
    }
  }

  /// Ends the slice of a ring's track; returns whether that run is the latest that is known of the runner.
  @discardableResult
  private mutating func endRun(_ event: RecordedEvent) -> Bool {
    let runner = Runner(event)
    guard let index = running[event.track]?.lastIndex(where: { $0.runner == runner }),
      let run = running[event.track]?[index]
    else { return true }
    running[event.track]?.removeSubrange(index...)
    slice(1, event.track, title(runner), run.since, event.time)
    guard let state = states[runner] else { return true }
    return state.name == "running" && state.since == run.since
  }

  /// Ends the slice of a coroutine's or a Task's track, and begins the next one; nil at its end.
  private mutating func change(_ event: RecordedEvent, to state: String?) {
    let runner = Runner(event)
    if runner.isTask, runner.id == 0 { return }
    if let old = states.removeValue(forKey: runner) {
      slice(runner.process, Int(runner.id), old.name, old.since, event.time)
    }
    if let state { states[runner] = (state, event.time) }
  }

  private mutating func slice(_ process: Int, _ track: Int, _ name: String, _ begin: UInt64, _ end: UInt64) {
    if end < start { return }
    let begin = max(begin, start)
    emit(
      #""ph":"X","pid":\#(process),"tid":\#(track),"ts":\#(time(begin)),"dur":\#(time(end - begin)),"name":\#(JSONText.quoted(name))"#
    )
  }

  private mutating func mark(_ event: RecordedEvent, _ name: String, _ argument: String?) {
    if event.time < start { return }
    let arguments = argument.map { #","args":{"\#($0)":\#(event.argument)}"# } ?? ""
    emit(#""ph":"i","s":"t","pid":1,"tid":\#(event.track),"ts":\#(time(event.time)),"name":"\#(name)"\#(arguments)"#)
  }

  /// A time in microseconds, which the format counts in.
  private func time(_ nanoseconds: UInt64) -> String {
    let fraction = "\(nanoseconds % 1_000)"
    return "\(nanoseconds / 1_000)." + String(repeating: "0", count: 3 - fraction.count) + fraction
  }

  private mutating func emit(_ members: String) {
    text.append(contentsOf: isFirst ? "\n{".utf8 : ",\n{".utf8)
    isFirst = false
    text.append(contentsOf: members.utf8)
    text.append(UInt8(ascii: "}"))
  }
}

extension RecordedEvent {
  /// Whether the event has the number of a coroutine.
  var isOfCoroutine: Bool {
    switch kind {
    case .launch, .site, .run, .park, .yield, .end, .wake, .leave: true
    case .steal, .sliceEnd, .lateTimer, .poll, .taskReady, .taskRun, .taskLeave: false
    }
  }

  /// Whether the event has the number of a Task.
  var isOfTask: Bool { kind == .taskReady || kind == .taskRun || kind == .taskLeave }
}

/// Texts in JSON.
enum JSONText {
  /// A string literal of JSON.
  static func quoted(_ text: String) -> String {
    var quoted = "\""
    for scalar in text.unicodeScalars {
      switch scalar {
      case "\"": quoted += "\\\""
      case "\\": quoted += "\\\\"
      case "\0"..<" ":
        let digits = String(scalar.value, radix: 16)
        quoted += "\\u" + String(repeating: "0", count: 4 - digits.count) + digits
      default: quoted.unicodeScalars.append(scalar)
      }
    }
    return quoted + "\""
  }
}

// MARK: - Files of recordings

// The files that the flight recorder writes at a stall, a deadlock and a fatal signal. The threads that notice these
// only leave a note (Sources/CCoroutineInspect/Incident.c); a thread of its own writes.
//
//   NONE --the first folder: the thread starts--> WAITING --notes--> WRITING --> WAITING
//
// Invariants
//  1. `state` is accessed under `lock`. The thread starts once in a process; a forked child starts another one.
//  2. A file is complete when it has its name: it is written under another one, and renamed.
//  3. A file that is there stays as it is: in a container each start of a program may have the same process number, and
//     what an earlier one has written is what an operator looks for.
//  4. The thread waits for no reader of standard error: a thread with a fatal signal waits for it.

enum RecordingFiles {
  private struct State {
    var folder: String?
    /// How often a file about each kind of incident was wanted.
    var counts: [String: Int] = [:]
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

  /// The largest number of names that are tried for a file, so that a program that always crashes fills no disk.
  private static var mostTries: Int { 100 }
  private static var mostRequests: Int { 16 }

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
    let isSignal = kind.incident == CCO_INCIDENT_SIGNAL
    guard let line = write(kind.name, atMost: kind.most, isNamed: !isSignal) else { return }
    // Here if possible: the process ends as soon as a fatal signal has been written about.
    if clinux_error_has_room(0) {
      writeToStandardError(line)
    } else if !isSignal {
      _ = DetachedThread.start("co-record-line") { writeToStandardError(line, mayWait: true) }
    }
  }

  /// Writes the recording because an operator asks for it, if it is on and has a folder; on a thread that may wait.
  static func writeOnRequest() {
    let full = "Coroutine: no recording is written: there were \(mostRequests) requests already, which is the most\n"
    if let line = write("request", atMost: mostRequests, isNamed: true, ifEnough: full) {
      writeToStandardError(line, mayWait: true)
    }
  }

  /// Writes the recording, if the program wants one and there is a folder; returns the line about it.
  ///
  /// If there are enough files, it writes none, and returns `full`.
  private static func write(_ name: String, atMost most: Int, isNamed: Bool, ifEnough full: String? = nil) -> String? {
    // A trace that somebody reads meanwhile is no reason for files.
    guard Recorder.isWanted.load(ordering: .relaxed), let (folder, number) = next(name) else { return nil }
    guard number <= most else { return full }
    let stem = "\(folder)/coroutine-\(getpid())-\(name)-"
    let (path, code) = write(CoroutineRuntime.recording(named: isNamed), to: stem, from: number)
    let shown = path.asLine
    if code == 0 { return "Coroutine: the recording before a \(name) is in \(shown)\n" }
    let reason = String(cString: strerror(code))
    return "Coroutine: the recording before a \(name) could not be written to \(shown): \(reason)\n"
  }

  /// The folder, and the number of the next file in this process; nil without a folder.
  private static func next(_ name: String) -> (folder: String, number: Int)? {
    lock.withLock {
      guard let folder = state.folder else { return nil }
      let count = state.counts[name, default: 0] + 1
      state.counts[name] = count
      return (folder, count)
    }
  }

  /// Writes a file with the first free number from `number` on; returns its path, and 0 or an error number.
  private static func write(_ bytes: [UInt8], to stem: String, from number: Int) -> (path: String, code: CInt) {
    var path = "\(stem)\(number).json"
    // For the system, the folder would end there.
    guard !path.utf8.contains(0) else { return (path, EINVAL) }
    let temporary = path + ".part"
    // Somebody else may have put a link there, to a file that the process can write.
    unlink(temporary)
    let file = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0o600)
    guard file >= 0 else { return (path, errno) }
    var code: CInt = 0
    bytes.withUnsafeBytes { bytes in
      var written = 0
      while written < bytes.count, code == 0, let start = bytes.baseAddress {
        let count = Glibc.write(file, start + written, bytes.count - written)
        if count > 0 { written += count } else if errno != EINTR { code = errno }
      }
    }
    if close(file) != 0, code == 0 { code = errno }
    if code == 0 {
      code = EEXIST
      for number in number..<number + mostTries where code == EEXIST {
        path = "\(stem)\(number).json"
        code = -clinux_rename_new(temporary, path)
      }
    }
    if code != 0 { unlink(temporary) }
    return (path, code)
  }
}
