import Glibc
import Synchronization

// The name that a running coroutine gives itself, its title. Reports on other threads read it while the coroutine runs,
// and may change it: a server's coroutine has another one with each request. So it costs a few stores, and no lock.
//
// A title is 128 bytes of memory, which a coroutine gets with its first title and its record keeps until the job's
// deinit: word 0, and 15 words of text. A reader holds the job, so the memory stays while it reads.
//
//   word 0:  the number of changes, 55 bits | whether a change is under way, 1 bit | the number of bytes, 8 bits
//
//   the coroutine, on its carrier          a reader, any thread
//   stores word 0 with `changing`          loads word 0 (acquire); gives up this time if `changing` is set
//   stores the words of the text (release) loads the words of the text (acquire)
//   stores word 0 with count + 1 (release) loads word 0 again: an equal one proves that the text is the one of word 0
//
// Why. Only the coroutine writes, so its stores have one order. If a load of the text has seen a store of a later
// change, then that store's release and the load's acquire put the store of `changing` before the second load of word
// 0, which therefore differs: the count only grows. If it has seen an older text, then the first load of word 0 had not
// acquired the text's stores, and so not their word 0. A change to fewer bytes of the same text is one store, of word
// 0: the words stay, so a reader that sees it early or late has one of the two titles.
//
// A reader that meets changes again and again gives up after a few times, and takes the name of the launch.

/// The title of a coroutine, in memory that its record owns.
package struct CoroutineTitle: Sendable {
  // Sound because the words are atomic, and the record frees them when no reader has the job.
  private nonisolated(unsafe) let words: UnsafeMutablePointer<Atomic<UInt64>>

  /// The largest number of bytes of a title; longer ones are cut.
  package static var most: Int { 120 }
  private static var changing: UInt64 { 1 << 8 }

  fileprivate init(_ words: UnsafeMutablePointer<Atomic<UInt64>>) { self.words = words }

  fileprivate static func make() -> CoroutineTitle? {
    guard let memory = malloc(Self.most + 8) else { return nil }
    let words = memory.bindMemory(to: Atomic<UInt64>.self, capacity: 16)
    for index in 0..<16 { (words + index).initialize(to: Atomic(0)) }
    return CoroutineTitle(words)
  }

  fileprivate var address: UInt { UInt(bitPattern: words) }
  fileprivate func free() { Glibc.free(words) }

  /// Keeps the first `kept` bytes of the title, and puts the texts behind them; on the coroutine's own carrier.
  package func set(
    keeping kept: Int = 0,
    _ first: UnsafeRawBufferPointer,
    _ second: UnsafeRawBufferPointer = .init(start: nil, count: 0)
  ) {
    let old = words.pointee.load(ordering: .relaxed) & ~Self.changing
    withUnsafeTemporaryAllocation(byteCount: Self.most, alignment: 8) { text in
      var count = kept
      if kept & 7 != 0 {
        text.storeBytes(of: words[1 + kept / 8].load(ordering: .relaxed), toByteOffset: kept & ~7, as: UInt64.self)
      }
      func add(_ part: UnsafeRawBufferPointer) {
        let copied = min(part.count, Self.most - count)
        UnsafeMutableRawBufferPointer(rebasing: text[count..<count + copied])
          .copyMemory(from: UnsafeRawBufferPointer(rebasing: part[..<copied]))
        count += copied
      }
      add(first)
      add(second)
      words.pointee.store(old | Self.changing, ordering: .relaxed)
      for offset in stride(from: kept & ~7, to: count, by: 8) {
        words[1 + offset / 8].store(text.load(fromByteOffset: offset, as: UInt64.self), ordering: .releasing)
      }
      words.pointee.store((old >> 9 &+ 1) << 9 | UInt64(count), ordering: .releasing)
    }
  }

  /// Which change is the latest one, and the number of bytes; on the coroutine's own carrier.
  package var state: UInt64 { words.pointee.load(ordering: .relaxed) }
  package var count: Int { Int(state & 0xFF) }

  /// Cuts the title to its first `kept` bytes; on the coroutine's own carrier.
  package func cut(to kept: Int) {
    let old = words.pointee.load(ordering: .relaxed)
    words.pointee.store((old >> 9 &+ 1) << 9 | UInt64(kept), ordering: .releasing)
  }

  /// The text; nil if there is none, or it changes all the time.
  fileprivate var text: String? {
    for _ in 0..<8 {
      let seen = words.pointee.load(ordering: .acquiring)
      if seen & Self.changing != 0 { continue }
      let count = Int(seen & 0xFF)
      if count == 0 { return nil }
      let text = withUnsafeTemporaryAllocation(byteCount: Self.most, alignment: 8) { text in
        for offset in stride(from: 0, to: count, by: 8) {
          text.storeBytes(of: words[1 + offset / 8].load(ordering: .acquiring), toByteOffset: offset, as: UInt64.self)
        }
        return String(decoding: text[..<count], as: UTF8.self)
      }
      if words.pointee.load(ordering: .relaxed) == seen { return text }
    }
    return nil
  }
}

// MARK: - In the record

extension UnsafeMutablePointer where Pointee == JobRecord {
  /// The title of the job, if it has one.
  fileprivate var title: CoroutineTitle? {
    let word = pointee.stateWord.load(ordering: .acquiring)
    guard word & JobRecord.isTitle != 0 else { return nil }
    return UnsafeMutableRawPointer(bitPattern: word & ~JobRecord.isTitle)
      .map { CoroutineTitle($0.assumingMemoryBound(to: Atomic<UInt64>.self)) }
  }

  /// The title of the running job, which is made if it has none; nil if there is no memory.
  func madeTitle() -> CoroutineTitle? {
    if let title { return title }
    guard let made = CoroutineTitle.make() else { return nil }
    pointee.stateWord.store(made.address | JobRecord.isTitle, ordering: .releasing)
    return made
  }

  /// Gives up what the job's word still has; in its deinit.
  func releaseStateWord() {
    guard pointee.stateWord.load(ordering: .relaxed) & 3 != 0 else { return }
    pointee.takePendingAnchor()?.release()
    title?.free()
  }
}

extension AnyJob {
  /// The name that reports show: the one that the coroutine has given itself last, or that of its launch.
  final var shownName: String? { record.title?.text ?? name }

  /// The same as an object, for reports that may come after the end.
  final var nameForReports: JobName? { record.title?.text.map { JobName($0) } ?? jobName }
}

// MARK: - The running coroutine

/// The running coroutine, as ``co_current`` returns it.
public struct CurrentCoroutine: Sendable {
  fileprivate init() {}

  /// The name of the coroutine, which a dump, a stall's line, a report of an error and a recording show.
  ///
  /// The name that was given at the launch, until it is set. Set it to say what a long coroutine is about at the
  /// moment; nil is the name of the launch again. Reports show its first 120 bytes, escaped. ``AnyJob/name`` stays that
  /// of the launch.
  ///
  /// Never suspends. Nil outside a coroutine, and setting it there has no effect. It costs a few stores, and 128 bytes
  /// of memory for each coroutine that has set it.
  ///
  /// <!-- compiled: Tests/CoroutineKernelTests/Job/CurrentNameTests.swift -->
  /// ```swift
  /// for file in files {
  ///   co_current.name = "importing \(file)"
  ///   try load(file)
  /// }
  /// ```
  public var name: String? {
    get { Carrier.current?.pointee.job?.handle._withUnsafeGuaranteedRef { $0.shownName } }
    nonmutating set {
      guard let job = Carrier.current?.pointee.job else { return }
      guard var newValue, !newValue.isEmpty else {
        job.title?.cut(to: 0)
        return
      }
      newValue.withUTF8 { job.madeTitle()?.set(UnsafeRawBufferPointer($0)) }
    }
  }
}

/// The running coroutine.
///
/// Never suspends; any thread.
public var co_current: CurrentCoroutine { CurrentCoroutine() }
