/* page_texts.h: the files of tools/pages, as they go into the pages that the command writes. */
#ifndef HL_PAGE_TEXTS_H
#define HL_PAGE_TEXTS_H

extern const char hl_page_css[]; /* pages/page.css */

#endif
