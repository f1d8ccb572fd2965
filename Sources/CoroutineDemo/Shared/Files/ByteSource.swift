#if Demo
/// Where bytes come from, in order, once: a file, an answer from the network.
///
/// `read` may suspend the coroutine it is called in, from however deep below it: there may be a parser written in C in
/// between.
protocol ByteSource: AnyObject {
  /// Fills `buffer` as far as there is something to fill it with; 0 is the end.
  func read(into buffer: UnsafeMutableRawBufferPointer) throws -> Int
}
#endif
