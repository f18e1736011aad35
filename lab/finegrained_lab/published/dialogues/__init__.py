"""Published dialogues that rest on documents: Doc2Dial, Wizard of Wikipedia, DSTC11 track 5; DialDoc's shared task."""
