package tapeclient

// maxEmptyPages is 16, the number of pages that one look reads to find an entry. A page looks at up to
// 4,000 entries of the queue.
const maxEmptyPages = 16

// pages reads a list page by page, over the looks of a loop, and begins again at the end. Only a server
// that limits the client to tenants has pages; the page of any other is the list.
type pages struct{ token string }

// look reads the next page that is not empty. read returns the number of entries of a page, and its
// next_page_token. After an error the next look begins again.
func (p *pages) look(read func(token string) (entries int, next string, err error)) error {
	for range maxEmptyPages {
		n, next, err := read(p.token)
		if p.token = next; err != nil {
			p.token = ""
			return err
		}
		if n > 0 || next == "" {
			break
		}
	}
	return nil
}
