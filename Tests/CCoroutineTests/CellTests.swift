import CCoroutineRuntime
import CTestSupport
import Glibc
import Synchronization
import Testing

/// Memory that the tests take, with marks that show whether another owner has written into it.
private struct Cell {
  let address: UnsafeMutableRawPointer

  init(at address: UnsafeMutableRawPointer = cco_cell_take()) { self.address = address }

  func mark(_ number: UInt64) {
    for word in words.indices { words[word] = number &+ UInt64(word) }
  }

  func hasMark(_ number: UInt64) -> Bool { words.indices.allSatisfy { words[$0] == number &+ UInt64($0) } }

  func give() { cco_cell_give(address) }

  private var words: UnsafeMutableBufferPointer<UInt64> {
    let count = Int(CCO_CELL_BYTES) / 8
    return UnsafeMutableBufferPointer(start: address.bindMemory(to: UInt64.self, capacity: count), count: count)
  }
}

/// Numbers that a seed determines (SplitMix64).
private struct Numbers: RandomNumberGenerator {
  var state: UInt64
  mutating func next() -> UInt64 {
    state &+= 0x9E37_79B9_7F4A_7C15
    var mixed = (state ^ (state >> 30)) &* 0xBF58_476D_1CE4_E5B9
    mixed = (mixed ^ (mixed >> 27)) &* 0x94D0_49BB_1331_11EB
    return mixed ^ (mixed >> 31)
  }
}

/// Cells that threads pass to each other.
private final class Exchange: Sendable {
  static let size = 512
  let slots: [Slot] = (0..<size).map { _ in Slot() }
  final class Slot: Sendable { let address = Atomic<UInt>(0) }
}

private let mayRest = Atomic<Bool>(false)
private let busy = Atomic<Int>(0)

/// Takes and gives many cells by turns, so that magazines go to the depot and come back; the cells of one thread never
/// change under its hands.
private func takeAndGive(_ rounds: Int, seed: UInt64) -> Bool {
  var numbers = Numbers(state: seed)
  var own: [(cell: Cell, mark: UInt64)] = []
  var goal = 0
  for _ in 0..<rounds {
    if own.count == goal { goal = own.count > 200 ? 0 : Int.random(in: 201...500, using: &numbers) }
    if own.count < goal {
      let (cell, mark) = (Cell(), numbers.next())
      cell.mark(mark)
      own.append((cell, mark))
    } else {
      let index = Int.random(in: own.indices, using: &numbers)
      own.swapAt(index, own.count - 1)
      let (cell, mark) = own.removeLast()
      guard cell.hasMark(mark) else { return false }
      cell.give()
    }
  }
  defer { for (cell, _) in own { cell.give() } }
  return own.allSatisfy { $0.cell.hasMark($0.mark) }
}

@Suite("Cells")
struct CellTests {
  @Test("Cells in use do not overlap, and are aligned to a cache line")
  func distinct() {
    let cells = (0..<5_000).map { _ in Cell() }
    let addresses = cells.map { UInt(bitPattern: $0.address) }.sorted()
    #expect(zip(addresses, addresses.dropFirst()).allSatisfy { $0 + UInt(CCO_CELL_BYTES) <= $1 })
    if !Machine.isSanitized { #expect(addresses.allSatisfy { $0 % 64 == 0 }) }
    for (index, cell) in cells.enumerated() { cell.mark(UInt64(index)) }
    #expect(cells.indices.allSatisfy { cells[$0].hasMark(UInt64($0)) })
    for cell in cells { cell.give() }
  }

  @Test("The cell that was given last is taken first", .enabled(if: !Machine.isSanitized))
  func latest() throws {
    try onThread {
      let cells = (0..<300).map { _ in Cell() }
      for cell in cells { cell.give() }
      let again = (0..<300).map { _ in Cell() }
      #expect(again[0].address == cells[299].address)
      // Of the others, threads of other tests may have taken some meanwhile.
      #expect(!Set(again.map(\.address)).isDisjoint(with: cells.map(\.address)))
      for cell in again { cell.give() }
    }
  }

  @Test("Threads may take and give at random while one of them trims")
  func whileTrimming() throws {
    let seed = UInt64.random(in: 0...UInt64.max)
    let rounds = Machine.isSanitized ? 5_000 : 40_000
    let ended = Atomic<Int>(0)
    let answers = try concurrently(threads: 4) { thread in
      if thread > 0 {
        defer { ended.add(1, ordering: .relaxed) }
        return takeAndGive(rounds, seed: seed &+ UInt64(thread))
      }
      while ended.load(ordering: .relaxed) < 3 { _ = cco_cells_trim(0) }
      return true
    }
    #expect(answers == [true, true, true, true], "seed \(seed)")
  }

  @Test("A cell may be given on another thread than that which has taken it")
  func passedOn() throws {
    let seed = UInt64.random(in: 0...UInt64.max)
    let exchange = Exchange()
    let answers = try concurrently(threads: 4) { thread in
      var numbers = Numbers(state: seed &+ UInt64(thread))
      for _ in 0..<(Machine.isSanitized ? 5_000 : 40_000) {
        let cell = Cell()
        cell.mark(UInt64(UInt(bitPattern: cell.address)))
        let slot = exchange.slots[Int.random(in: 0..<Exchange.size, using: &numbers)]
        let old = slot.address.exchange(UInt(bitPattern: cell.address), ordering: .acquiringAndReleasing)
        guard let address = UnsafeMutableRawPointer(bitPattern: old) else { continue }
        let other = Cell(at: address)
        guard other.hasMark(UInt64(old)) else { return false }
        other.give()
      }
      return true
    }
    #expect(answers == [true, true, true, true], "seed \(seed)")
    for slot in exchange.slots {
      guard let address = UnsafeMutableRawPointer(bitPattern: slot.address.load(ordering: .relaxed)) else { continue }
      cco_cell_give(address)
    }
  }
}

/// What becomes of the memory of cells; in processes of their own, in which no other test takes cells.
@Suite("The memory of cells", .enabled(if: !Machine.isSanitized))
struct CellMemoryTests {
  @Test("Trimming returns the memory of cells that were not used since the last call, and they can be used again")
  func trim() async {
    await #expect(processExitsWith: .success) {
      let count = 100_000
      var cells = (0..<count).map { _ in Cell() }
      for cell in cells { cell.mark(7) }
      let full = Machine.memory.resident
      for cell in cells { cell.give() }
      // They were used since the start.
      #expect(cco_cells_trim(0) == 0)
      #expect(cco_cells_trim(0) > count * 9 / 10)
      #expect(full - Machine.memory.resident > count * Int(CCO_CELL_BYTES) * 8 / 10)
      #expect(cco_cells_pooled() < 1_000)
      cells = (0..<count).map { _ in Cell() }
      for (index, cell) in cells.enumerated() { cell.mark(UInt64(index)) }
      #expect(cells.indices.allSatisfy { cells[$0].hasMark(UInt64($0)) })
      // In the same slabs.
      #expect(Machine.memory.resident < full + 4 << 20)
    }
  }

  @Test("A block with one cell in use keeps its memory")
  func inUse() async {
    await #expect(processExitsWith: .success) {
      let cells = (0..<100_000).map { _ in Cell() }
      let kept = stride(from: 0, to: cells.count, by: 100).map { cells[$0] }
      for (index, cell) in kept.enumerated() { cell.mark(UInt64(index)) }
      for index in cells.indices where index % 100 != 0 { cells[index].give() }
      _ = cco_cells_trim(0)
      #expect(cco_cells_trim(0) < 1_000)
      #expect(kept.indices.allSatisfy { kept[$0].hasMark(UInt64($0)) })
      for cell in kept { cell.give() }
      // The first call finds them used, and the next one passes, because the last walk has brought little.
      _ = cco_cells_trim(0)
      _ = cco_cells_trim(0)
      // This thread keeps the last ones, which lie in up to 51 blocks.
      #expect(cco_cells_trim(0) > 80_000)
    }
  }

  @Test("A depot that a walk has found in use is looked at more and more seldom, and at once when it has grown")
  func walksInVain() async {
    await #expect(processExitsWith: .success) {
      let cells = (0..<100_000).map { _ in Cell() }
      // One cell of each block stays taken.
      for index in cells.indices where index % 100 != 0 { cells[index].give() }
      func walks(in calls: Int) -> UInt64 {
        let before = cco_cells_walks()
        for _ in 0..<calls { _ = cco_cells_trim(0) }
        return cco_cells_walks() - before
      }
      // Without pauses, every second call would walk.
      #expect(walks(in: 70) == 6)
      #expect(walks(in: 350) <= 11)
      let more = (0..<60_000).map { _ in Cell() }
      // The depot has given what it had, 15,000 cells do not come back, and so it has grown by less than a quarter.
      for cell in more[..<45_000] { cell.give() }
      #expect(walks(in: 2) == 0)
      // A burst that ends.
      let burst = (0..<150_000).map { _ in Cell() }
      for cell in burst { cell.give() }
      #expect(walks(in: 2) == 1)
    }
  }

  @Test("A walk that brings much ends the pauses")
  func walksThatPay() async {
    await #expect(processExitsWith: .success) {
      let cells = (0..<100_000).map { _ in Cell() }
      for index in cells.indices where index % 100 != 0 { cells[index].give() }
      for _ in 0..<70 { _ = cco_cells_trim(0) }
      for index in stride(from: 50_000, to: cells.count, by: 100) { cells[index].give() }
      // At most the longest pause, and a call that finds the cells used. This thread keeps cells of up to 51 blocks.
      var (trimmed, calls) = (0, 0)
      while trimmed == 0, calls < 34 { (trimmed, calls) = (cco_cells_trim(0), calls + 1) }
      #expect(trimmed > 30_000)
      for index in stride(from: 0, to: 50_000, by: 100) { cells[index].give() }
      trimmed = 0
      for _ in 0..<3 { trimmed += cco_cells_trim(0) }
      #expect(trimmed > 30_000)
    }
  }

  @Test("Trimming keeps as many cells as it is told, and those that were used since the last call")
  func keep() async {
    await #expect(processExitsWith: .success) {
      let cells = (0..<50_000).map { _ in Cell() }
      for cell in cells { cell.give() }
      _ = cco_cells_trim(0)
      let again = (0..<30_000).map { _ in Cell() }
      for cell in again { cell.give() }
      #expect(cco_cells_trim(0) < 21_000)
      #expect(cco_cells_trim(20_000) < 15_000)
      #expect(cco_cells_pooled() >= 19_000)
    }
  }

  @Test("A thread that ends leaves its cells to the others")
  func threadsThatEnd() async {
    await #expect(processExitsWith: .success) {
      // With a leak each thread would need cells that no other thread has had.
      var addresses: Set<UnsafeMutableRawPointer> = []
      for _ in 0..<500 {
        addresses.formUnion(
          try onThread {
            let cells = (0..<128).map { _ in Cell() }
            for cell in cells { cell.give() }
            return cells.map(\.address)
          }
        )
      }
      #expect(addresses.count <= 1_024)
    }
  }

  @Test("A forked child takes and gives cells, whatever the parent's other threads did with them")
  func forks() async {
    await #expect(processExitsWith: .success) {
      // What both sides use is made before: Swift's runtime makes types under locks of its own.
      precondition(takeAndGive(2_000, seed: 9))
      let others = (0..<3).map { thread in
        startThread {
          busy.add(1, ordering: .relaxed)
          while !mayRest.load(ordering: .relaxed) {
            precondition(takeAndGive(2_000, seed: UInt64(thread)))
            if thread == 0 { _ = cco_cells_trim(0) }
          }
        }
      }
      while busy.load(ordering: .relaxed) < 3 { sched_yield() }
      for round in 0..<100 {
        let answer = cts_in_child(120, { _ in takeAndGive(2_000, seed: 9) ? 0 : 1 }, nil)
        #expect(answer == 0, "round \(round)")
        if answer != 0 { break }
      }
      mayRest.store(true, ordering: .relaxed)
      for thread in others { pthread_join(thread, nil) }
    }
  }
}
