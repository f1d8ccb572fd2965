/// Ends the process with a sentence, also in a release build, where a precondition's text is left out.
@usableFromInline
func misuse(_ sentence: @autoclosure () -> String, file: StaticString = #fileID, line: UInt = #line) -> Never {
  fatalError(sentence(), file: file, line: line)
}
