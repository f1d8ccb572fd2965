#if Demo
/// What the progress display knows, and how it looks: a value, without a terminal or a clock of its own.
///
/// Each step goes  waiting → running → done | failed | stopped,  never back.
struct ProgressBoard<Step: ProgressStep>: Sendable {
  enum Status: Equatable, Sendable {
    case waiting
    case running(since: ContinuousClock.Instant)
    case done(Duration)
    case failed
    /// Cancelled or out of time before it could end.
    case stopped
  }

  static var frames: [String] { ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"] }

  private(set) var statuses: [Step: Status] = [:]

  func status(of step: Step) -> Status { statuses[step] ?? .waiting }

  /// The step that is under way or was stopped, to say where the time ran out.
  var unfinished: Step? {
    Step.allCases.first { step in
      switch status(of: step) {
      case .running, .stopped: true
      case .waiting, .done, .failed: false
      }
    }
  }

  mutating func begin(_ step: Step, at now: ContinuousClock.Instant) {
    guard status(of: step) == .waiting else { return }
    statuses[step] = .running(since: now)
  }

  /// How long the step took; nil where it was not running.
  @discardableResult
  mutating func complete(_ step: Step, at now: ContinuousClock.Instant) -> Duration? {
    guard case .running(let start) = status(of: step) else { return nil }
    statuses[step] = .done(now - start)
    return now - start
  }

  mutating func end(_ step: Step, as status: Status) {
    guard case .running = self.status(of: step) else { return }
    statuses[step] = status
  }

  /// The list as it looks now, one line a step, none longer than `columns`.
  func lines(frame: Int, at now: ContinuousClock.Instant, columns: Int, colour: Bool) -> [String] {
    let listed = Step.allCases.filter(\.isListed)
    let widest = listed.map(\.title.count).max() ?? 0
    return listed.map { step in
      let (mark, shade, remark) = looks(of: status(of: step), frame: frame, at: now)
      // Cut before the colours go in: a line that wraps would throw the redrawing off by one.
      let room = max(columns - 5, 0)
      let padded = step.title + String(repeating: " ", count: widest - step.title.count) + "  " + remark
      let text = remark.isEmpty || padded.count > room ? String(step.title.prefix(room)) : padded
      return colour ? "  \u{1B}[\(shade)m\(mark)\u{1B}[0m \(text)" : "  \(mark) \(text)"
    }
  }

  private func looks(
    of status: Status,
    frame: Int,
    at now: ContinuousClock.Instant
  ) -> (mark: String, shade: Int, remark: String) {
    switch status {
    case .waiting: ("·", 90, "")
    case .running(let start): (Self.frames[frame % Self.frames.count], 36, (now - start).readable)
    case .done(let duration): ("✓", 32, duration.readable)
    case .failed: ("✗", 31, "failed")
    case .stopped: ("✗", 33, "stopped")
    }
  }
}

extension Duration {
  /// "12 ms" or "3.4 s".
  var readable: String {
    let milliseconds = components.seconds * 1000 + components.attoseconds / 1_000_000_000_000_000
    if milliseconds < 1000 { return "\(milliseconds) ms" }
    let tenths = (milliseconds + 50) / 100
    return "\(tenths / 10).\(tenths % 10) s"
  }
}
#endif
