#if Demo
import Coroutine

/// Shows how far a job is: a live list with a spinner on a terminal, one line an event elsewhere.
///
/// Invariants: every byte is written with the lock held, so that the spinner's drawing and a step's never mix (the one
/// exception to "no foreign code under a lock": write(2) calls nothing back). After `dismiss` nothing is drawn any
/// more.
///
///     idle ── show ──► shown ── settle ──► settled
///       └─────────── dismiss ─┴────────────────┴────► dismissed
///
/// The state is owned by `state`'s lock; the spinner's coroutine is owned by the state and cancelled on leaving
/// `shown`.
final class Progress<Step: ProgressStep>: Sendable {
  private enum Phase {
    case idle
    case shown
    /// The list is in its last form, and the job writes to the terminal below it.
    case settled
    case dismissed
  }

  private struct State: Sendable {
    var phase = Phase.idle
    var board = ProgressBoard<Step>()
    var frame = 0
    var linesDrawn = 0
    var spinner: Job<Void>?
  }

  private let output: Output
  private let clock = ContinuousClock()
  private let state = Locked(State())
  private var isLive: Bool { output.display != .text }

  init(on output: Output) {
    self.output = output
  }

  /// The step that is under way or was stopped, if any.
  var unfinished: Step? { state.withLock { $0.board.unfinished } }

  /// Begins to show; on a terminal a coroutine turns the spinner from now on.
  func show() {
    state.withLock { state in
      guard state.phase == .idle else { return }
      state.phase = .shown
      if isLive { output.note("\u{1B}[?25l") }
      draw(&state)
    }
    guard isLive else { return }
    let spinner = co_launch(name: "spinner") {
      // Ends when it is cancelled, by settle or by dismiss; there is nobody to tell about it.
      while (try? co_delay(.milliseconds(80))) != nil {
        self.state.withLock { state in
          state.frame += 1
          self.draw(&state)
        }
      }
    }
    let late = state.withLock { state in
      guard state.phase == .shown else { return true }
      state.spinner = spinner
      return false
    }
    if late { spinner.cancel() }
  }

  /// Takes the display away and gives the cursor back; safe to call twice.
  func dismiss() {
    leave(for: .dismissed)
  }

  func begin(_ step: Step) {
    if !step.isListed { leave(for: .settled) }
    state.withLock { state in
      state.board.begin(step, at: clock.now)
      draw(&state)
      line(step, step.title, state)
    }
  }

  func complete(_ step: Step) {
    state.withLock { state in
      guard let duration = state.board.complete(step, at: clock.now) else { return }
      draw(&state)
      line(step, "done in \(duration.readable)", state)
    }
  }

  func end(_ step: Step, as status: ProgressBoard<Step>.Status) {
    state.withLock { state in
      state.board.end(step, as: status)
      draw(&state)
      line(step, status == .failed ? "failed" : "stopped", state)
    }
  }

  private func leave(for phase: Phase) {
    let spinner: Job<Void>? = state.withLock { state in
      guard state.phase != .dismissed else { return nil }
      draw(&state)
      if isLive && state.phase == .shown { output.note("\u{1B}[?25h") }
      state.phase = phase
      defer { state.spinner = nil }
      return state.spinner
    }
    spinner?.cancel()
  }

  /// Draws the list over its last form; a plain output gets lines instead, from `line`.
  private func draw(_ state: inout State) {
    guard isLive, state.phase == .shown else { return }
    let lines = state.board.lines(
      frame: state.frame,
      at: clock.now,
      columns: output.size.columns,
      colour: output.display.hasColour
    )
    let up = state.linesDrawn > 0 ? "\u{1B}[\(state.linesDrawn)A" : ""
    // Clears below too: a Ctrl-C leaves its ^C there.
    output.note(up + lines.map { "\r\u{1B}[2K\($0)\n" }.joined() + "\u{1B}[J")
    state.linesDrawn = lines.count
  }

  private func line(_ step: Step, _ text: String, _ state: State) {
    guard !isLive, step.isListed, state.phase == .shown else { return }
    output.note("\(step.name): \(text)\n")
  }
}
#endif
