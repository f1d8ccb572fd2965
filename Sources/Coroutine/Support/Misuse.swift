/// Ends the process with a message, also in release builds, which omit the message of a precondition.
@usableFromInline
package func misuse(_ sentence: @autoclosure () -> String, file: StaticString = #fileID, line: UInt = #line) -> Never {
  fatalError(sentence().asLine, file: file, line: line)
}
