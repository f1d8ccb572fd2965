import Synchronization

extension CoroutineRuntime {
  /// Starts the flight recorder: from now on the last events of each worker and queue are kept.
  ///
  /// The events are: launch, run, wait with its kind, wake-up with its coroutine, yield, end, steal, end of a time
  /// slice, a timer that is a millisecond late or more, and a batch of descriptor events. Each takes 16 bytes, so a
  /// mebibyte keeps the last 65,536. The memory of a ring is used as it fills.
  ///
  /// While the recorder is off, it costs one tested branch in a launch and in what the driver does. While it is on,
  /// each switch goes by the driver. It starts and stops at any time: a busy worker
  /// or queue follows within 64 switches. If it is on, the call only sets the folder; else the events of the last
  /// recording are dropped. The environment variable `COROUTINE_RECORD=1` starts it with the process. At most 1,024
  /// workers and queues are recorded, and the ones that have ended make room for new ones.
  ///
  /// With a folder, ``recording()`` is also written to a file there at each of these:
  /// - a stall (``onStall(after:_:)``), also with the library's own handler;
  /// - a deadlock, while a handler is set (``onDeadlock(_:)``);
  /// - a fatal signal of any thread. The thread waits until the file is there, for five seconds at most. The process
  ///   then ends as it would have ended.
  ///
  /// The file is `coroutine-PROCESS-stall-NUMBER.json`, or `-deadlock-` or `-signal-`; at most four for stalls, four
  /// for deadlocks, and one for a fatal signal. A line on standard error has its path, or says why there is none. A
  /// thread of its own writes them, which lives as long as the process. `COROUTINE_RECORD=/a/folder` does this without
  /// code. A forked child writes no file before it calls this.
  ///
  /// Never suspends; any thread.
  /// - Parameters:
  ///   - bytesPerWorker: The size of each ring in bytes, rounded down to a power of two; at least 1,024.
  ///   - folder: The path of a folder that exists; nil for no files.
  public static func startRecording(bytesPerWorker: Int = 1 << 20, filesIn folder: String? = nil) {
    RecordingFiles.use(folder)
    Recorder.start(bytes: min(max(bytesPerWorker, 1_024), 1 << 32))
  }

  /// Stops the flight recorder; ``recording()`` still has its events.
  ///
  /// Never suspends; any thread. If it is off, the call has no effect.
  public static func stopRecording() { Recorder.stop() }

  /// Whether the flight recorder is on.
  package static var isRecording: Bool { Events.isOn.load(ordering: .relaxed) }

  /// Returns the recorded events as a JSON document of trace events, which Perfetto (ui.perfetto.dev) and
  /// chrome://tracing open.
  ///
  /// It has a track for each worker and queue, with what ran there, and one for each coroutine, with its states. An
  /// arrow leads from each wake-up to the run that it caused. Events that are overwritten while they are read are
  /// missing. Without a recording the document has no events.
  ///
  /// Never suspends; any thread, at any time, also while the recorder is on. Takes time and memory in proportion to the
  /// number of events.
  public static func recording() -> [UInt8] {
    let recording = Recorder.current
    let (events, horizon) = RecordedEvent.all(of: recording)
    let end = (recording.end?.nanoseconds ?? 0) &- recording.start.nanoseconds
    var trace = TraceWriter(events, end: end, horizon: horizon)
    return trace.write(recording.rings + (recording.outside.map { [$0] } ?? []))
  }
}

/// An event of a recording, with its time.
struct RecordedEvent {
  let kind: Events.Kind
  let track: Int
  /// Nanoseconds since the start.
  let time: UInt64
  let id: UInt32
  let argument: UInt32
  /// The launch site's file; of `site` only.
  var file = ""

  /// The events of all rings in the order of their times, and the latest of the oldest times of full rings.
  ///
  /// Events of one ring keep their order.
  static func all(of recording: Recorder.Recording) -> (events: [RecordedEvent], horizon: UInt64) {
    guard let end = recording.end else { return ([], 0) }
    let ticks = Double(end.ticks &- recording.start.ticks)
    let scale = ticks > 0 ? Double(end.nanoseconds - recording.start.nanoseconds) / ticks : 1
    var (events, horizon): ([RecordedEvent], UInt64) = ([], 0)
    for ring in recording.rings + (recording.outside.map { [$0] } ?? []) {
      var last: UInt64 = 0
      let kept = ring.events()
      let own = kept.compactMap { RecordedEvent($0, ring.number, scale, &last) }
      if kept.count + 1 >= ring.capacity, let oldest = own.first(where: { $0.time > 0 }) {
        horizon = max(horizon, oldest.time)
      }
      events += own
    }
    let sorted = events.enumerated().sorted { ($0.element.time, $0.offset) < ($1.element.time, $1.offset) }
    return (sorted.map(\.element), horizon)
  }

  private init?(_ stored: EventRing.Stored, _ track: Int, _ scale: Double, _ last: inout UInt64) {
    guard let kind = Events.Kind(rawValue: UInt8(truncatingIfNeeded: stored.first)) else { return nil }
    self.kind = kind
    self.track = track
    id = UInt32(truncatingIfNeeded: stored.second)
    argument = UInt32(truncatingIfNeeded: stored.second >> 32)
    if kind == .site {
      let address = UInt(stored.first >> 8 & 0xFFFF_FFFF_FFFF)
      // Sound because it is the address of a literal's bytes, which the launch has passed (LaunchSite).
      if let start = UnsafePointer<UInt8>(bitPattern: address) {
        file = String(decoding: UnsafeBufferPointer(start: start, count: Int(stored.first >> 56)), as: UTF8.self)
      }
    } else {
      // A thread may read the counter a little earlier than the one whose work it continues.
      last = max(last, UInt64(Double(stored.first >> 8) * scale))
    }
    time = last
  }
}
