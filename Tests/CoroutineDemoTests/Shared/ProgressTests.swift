#if Demo
import Testing

@testable import CoroutineDemo

@Suite struct `The progress list` {
  private enum Stage: String, ProgressStep {
    case mix
    case bake
    case serve

    var name: String { rawValue }
    var title: String { self == .bake ? "Baking it" : "Mixing" }
    var isListed: Bool { self != .serve }
  }

  private let start = ContinuousClock().now

  @Test func `shows what waits, runs and is done, with times in a column`() {
    var board = ProgressBoard<Stage>()
    #expect(board.lines(frame: 0, at: start, columns: 80, colour: false) == ["  · Mixing", "  · Baking it"])
    board.begin(.mix, at: start)
    let later = start + .milliseconds(40)
    #expect(board.lines(frame: 11, at: later, columns: 80, colour: false)[0] == "  ⠙ Mixing     40 ms")
    #expect(board.complete(.mix, at: later) == .milliseconds(40))
    board.begin(.bake, at: later)
    let lines = board.lines(frame: 0, at: later + .milliseconds(3449), columns: 80, colour: false)
    #expect(lines == ["  ✓ Mixing     40 ms", "  ⠋ Baking it  3.4 s"])
  }

  @Test func `colours only the mark`() {
    var board = ProgressBoard<Stage>()
    board.begin(.mix, at: start)
    board.end(.mix, as: .failed)
    #expect(
      board.lines(frame: 0, at: start, columns: 80, colour: true)[0] == "  \u{1B}[31m✗\u{1B}[0m Mixing     failed"
    )
  }

  @Test func `a narrow terminal gets no line that wraps, nor half a number`() {
    var board = ProgressBoard<Stage>()
    board.begin(.bake, at: start)
    board.complete(.bake, at: start + .milliseconds(707))
    #expect(board.lines(frame: 0, at: start, columns: 22, colour: false)[1] == "  ✓ Baking it  707 ms")
    #expect(board.lines(frame: 0, at: start, columns: 20, colour: false)[1] == "  ✓ Baking it")
    #expect(board.lines(frame: 0, at: start, columns: 9, colour: false)[1] == "  ✓ Baki")
  }

  @Test func `no step goes back, and none ends that has not begun`() {
    var board = ProgressBoard<Stage>()
    #expect(board.complete(.mix, at: start) == nil)
    board.end(.mix, as: .failed)
    #expect(board.status(of: .mix) == .waiting)
    board.begin(.mix, at: start)
    board.end(.mix, as: .stopped)
    board.begin(.mix, at: start)
    #expect(board.complete(.mix, at: start) == nil)
    #expect(board.status(of: .mix) == .stopped)
    #expect(board.unfinished == .mix)
  }
}
#endif
